"""Files whose heads say that they play for a moment, and which play for a minute: does a budget believe them?"""

from __future__ import annotations

import struct

from benchmarks.attacks.frame import MALLORY, Rig, must
from benchmarks.attacks.frame.provider import spent
from tests.fakes import reply
from tests.gateway.metering.files import flac, mp3, mp4, opus, wav, webm
from tests.gateway.metering.hidden_sound import frames_in_frames

POINT = "30.3"
TRIED = "20 transcriptions of 62 s in each of seven forms whose heads tell 10 ms, on $0.05 a day at $0.006 a minute"
HOLDS = (
    "a budget lets in the 8 that it pays for, or none of a kind that cannot be measured; the ledger has them"
)
SECONDS, MINUTE, BUDGET = 62, 0.006, 0.05


def files() -> dict[str, bytes]:
    short = wav(0.01)
    two = short + wav(SECONDS)[36:]
    rates = bytearray(wav(SECONDS))
    struct.pack_into("<I", rates, 28, 0xFFFFFFFF)  # bytes a second
    struct.pack_into("<HHI", rates, 20, 7, 1, 32_000)
    samples = 16_000 * SECONDS
    return {
        "two.wav": two,
        "packed.wav": bytes(rates),
        "short.flac": flac(samples, 16_000, told=160),
        "short.ogg": opus(SECONDS, told=0.01),
        "short.m4a": mp4(0.01, frames=samples // 1024),
        "short.mp3": mp3(SECONDS * 44_100 // 1152, index=1),
        "frames.mp3": frames_in_frames(SECONDS * 1000 // 72),
        "browser.webm": webm(SECONDS, codec=b"A_VORBIS"),
    }


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply({"text": "Hello"}))
    found = []
    for name, data in files().items():
        policy = rig.policy(
            upstream,
            prices={"upstream-model": {"minute": MINUTE}},
            tenants={"mallory": {"budget": {"usd_per_day": BUDGET}}},
        )
        gateway = await rig.gateway(policy)
        let_in = 0
        for _ in range(20):
            answer = await gateway.http.post(
                "/v1/audio/transcriptions",
                data={"model": "m"},
                files={"file": (name, data)},
                headers={"authorization": f"Bearer {MALLORY}"},
            )
            must(
                answer.status_code in (200, 400, 429), f"{name} got {answer.status_code}: {answer.text[:150]}"
            )
            let_in += answer.status_code == 200
        true = let_in * SECONDS * MINUTE / 60
        must(true <= BUDGET, f"{name}: {let_in} of 20 were let in, of ${true:.3f}")
        await gateway.stop()
        ledger = sum(row["cost_nanodollars"] for row in spent(gateway)) / 1e9
        must(abs(ledger - true) <= 0.05 * true, f"{name}: ${ledger:.5f} in the ledger for ${true:.5f}")
        found.append(f"{name} {let_in}")
    return "let in of 20: " + ", ".join(found)
