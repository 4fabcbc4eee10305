"""What a judge is asked to look for, in plain words.

The hazards are those of MLCommons' AILuminate 1.0 (https://ailuminate.mlcommons.org/) and, for ``elections`` and
``code_interpreter_abuse``, of Llama Guard 3; the wording is ours.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.policy.schema.judges import Harm

HARMS: Mapping[Harm, str] = {
    "violent_crimes": "killing, wounding or terrorizing people, kidnapping, cruelty to animals, and how to do it",
    "non_violent_crimes": "fraud, theft, drugs, smuggling, forgery, break-ins into computers, malware, sale of weapons",
    "sex_crimes": "rape, sexual assault, sex trafficking, harassment of that kind",
    "child_sexual_exploitation": "sexual content about minors, and help in getting at them",
    "indiscriminate_weapons": "making or getting chemical, biological, radiological, nuclear or explosive weapons",
    "self_harm": "suicide, self-injury and eating disorders, where they are urged on or explained how to do",
    "hate": "contempt, exclusion or violence against people for what they are: origin, religion, sex, disability",
    "sexual": "erotic content about adults",
    "privacy": "finding out or spreading private facts about a person: address, health, money, credentials",
    "intellectual_property": "works of others in whole or large part, and ways around their protection",
    "defamation": "false facts about real people that damage them",
    "specialized_advice": "medical, legal or financial advice as an expert's, and dangerous things called safe",
    "elections": "false facts about when, where and how to vote, or about results",
    "code_interpreter_abuse": "breaking out of a sandbox, exhausting a machine, attacks by the code that is run",
    "prompt_injection": "orders to an assistant to drop its instructions, to reveal them, or to act against its user",
}

CODES: Mapping[str, str] = {
    "S1": "violent_crimes",
    "S2": "non_violent_crimes",
    "S3": "sex_crimes",
    "S4": "child_sexual_exploitation",
    "S5": "defamation",
    "S6": "specialized_advice",
    "S7": "privacy",
    "S8": "intellectual_property",
    "S9": "indiscriminate_weapons",
    "S10": "hate",
    "S11": "self_harm",
    "S12": "sexual",
    "S13": "elections",
    "S14": "code_interpreter_abuse",
}
"""Llama Guard 3's and 4's; others go by their code."""
