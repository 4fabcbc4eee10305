"""What the langsmith package's own types make of what is sent; runs in its environment."""

import json
import sys
import uuid
from datetime import datetime

from langsmith.schemas import ExampleCreate, FeedbackCreate


def wrong(kind, body):
    try:
        kind.model_validate(body)
    except Exception as error:
        return str(error)
    odd = [name for name in body if name not in kind.model_fields]
    return f"no such field: {odd}" if odd else ""


told = json.load(sys.stdin)
found = [[f"feedback {one['key']}", wrong(FeedbackCreate, one)] for one in told["feedback"]]
for experiment in told["experiments"]:
    for row in experiment["results"]:
        outputs = {"reference_outputs": row["expected_outputs"]}
        example = {"id": row["row_id"], "inputs": row["inputs"], **outputs}
        found.append([f"example {row['row_id'][:8]}", wrong(ExampleCreate, example)])
        for one in row["evaluation_scores"]:
            feedback = {**one, "id": str(uuid.uuid4()), "run_id": row["row_id"], "trace_id": row["row_id"]}
            feedback["feedback_source"] = {"type": "api"}
            found.append([f"feedback {one['key']}", wrong(FeedbackCreate, feedback)])
        times = [datetime.fromisoformat(row[name]) for name in ("start_time", "end_time")]
        whole = [datetime.fromisoformat(experiment[f"experiment_{name}_time"]) for name in ("start", "end")]
        inside = whole[0] <= times[0] <= times[1] <= whole[1]
        found.append([f"times {row['row_id'][:8]}", "" if inside else "not within the experiment's"])
print(json.dumps(found))
