"""What the langfuse package's own types make of what is sent; runs in its environment."""

import json
import sys

from langfuse import Langfuse
from langfuse._client.attributes import LangfuseOtelSpanAttributes
from langfuse.api.core.serialization import convert_and_respect_annotation_metadata
from langfuse.api.dataset_items.types.create_dataset_item_request import CreateDatasetItemRequest
from langfuse.api.scores.types.create_score_request import CreateScoreRequest


def wrong(kind, body):
    """A name that the type does not have is taken as an extra: that is wrong here."""
    try:
        read = kind(
            **convert_and_respect_annotation_metadata(object_=body, annotation=kind, direction="read")
        )
    except Exception as error:
        return str(error)
    extra = [*(read.model_extra or {})]
    return f"no such field: {extra}" if extra else ""


told = json.load(sys.stdin)
names = {value for name, value in vars(LangfuseOtelSpanAttributes).items() if name.isupper()}
found = [
    [f"score {one['name']} ({one['dataType']})", wrong(CreateScoreRequest, one)] for one in told["scores"]
]
found += [[f"item {one['id'][:8]}", wrong(CreateDatasetItemRequest, one)] for one in told["items"]]
for span in told["spans"]:
    odd = [pair["key"] for pair in span["attributes"] if pair["key"] not in names]
    found.append([f"span {span['spanId']}", f"no such attribute: {odd}" if odd else ""])
project, data_set, name, number = told["experiment"]
client = Langfuse(public_key="pk", secret_key="sk", tracing_enabled=False)
own = client._create_experiment_id(project_id=project, dataset_id=data_set, run_name=name)
found.append(["experiment id", "" if own == number else f"{number} is {own} there"])
print(json.dumps(found))
