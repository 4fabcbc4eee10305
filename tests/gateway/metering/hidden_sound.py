"""Sound where a look at the head finds none, or another: FFmpeg plays each of these for a minute."""

from __future__ import annotations

import struct
import zlib

from tests.gateway.metering.files import TWENTY_MS, mp3, mp4, opus, wav

HEAD = 36
"""Bytes of a WAV before its ``data``."""
ADTS = b"\xff\xf1\x60\x40\x08\x1f\xfc" + bytes(57)
"""A frame of AAC: 64 bytes for 1024 samples at 16 kHz."""
LONG_ADTS = b"\xff\xf1\x6c\x43\xff\xff\xfc".ljust(8191, b"\0")
"""The longest that there is: 1024 samples at 8 kHz."""
FULL_MP3 = b"\xff\xfb\xe0\xc4".ljust(1044, b"\xff")
"""A frame of 320 kbit/s at 44.1 kHz, whose every byte may begin another."""
AC3 = b"\x0b\x77\0\0\x80\x40" + bytes(186)
"""A frame: 192 bytes for 1536 samples at 32 kHz."""
EAC3 = b"\x0b\x77\0\x5f\x34\x80" + bytes(186)
LOAS = b"\x56\xe0\x3d" + bytes(61)
DTS = b"\x7f\xfe\x80\x01" + bytes(508)


def in_wav(sound: bytes, *, kind: int = 1) -> bytes:
    """Frames that call themselves samples of 48 kHz."""
    head = wav(0, rate=48_000, channels=2)[:HEAD]
    head = head[:20] + struct.pack("<H", kind) + head[22:]
    return head + struct.pack("<4sI", b"data", len(sound)) + sound


def frames_in_frames(number: int, gap: bytes = b"") -> bytes:
    """Each frame of 8 kbit/s, which plays 72 ms, holds what looks like frames of 320 kbit/s, in unbroken order; ``gap``
    stands before every fifth."""
    false = b"\xff\xfb\xe4\xc4"  # of 960 bytes: 24 more than a number of true ones has
    filled = bytearray(b"\xff\xe3\x18\xc0" + bytes(68))
    for place in (16, 20, 40, 44, 64, 68):
        filled[place : place + 4] = false
    return b"".join((gap if at % 5 == 4 else b"") + bytes(filled) for at in range(number))


def in_bursts(frame: bytes) -> bytes:
    """S/PDIF, as AC-3 is sent over it, in a WAV of eight channels of 192 kHz."""
    swapped = bytes(frame[at ^ 1] for at in range(len(frame)))
    burst = b"\x72\xf8\x1f\x4e\x01\0" + struct.pack("<H", 8 * len(frame)) + swapped
    data = bytearray(in_wav(burst.ljust(6144, b"\0") * 1292))
    struct.pack_into("<HIIHH", data, 22, 8, 192_000, 192_000 * 32, 32, 32)
    return bytes(data)


def ima(seconds: float, bits: int) -> bytes:
    data = bytearray(in_wav(bytes(int(16_000 * bits / 8 * seconds)), kind=0x11))
    struct.pack_into("<HIIHH", data, 22, 1, 16_000, 8000, 256, bits)
    return bytes(data)


def opus_like_vorbis(seconds: int) -> bytes:
    """Each page has a packet of 20 ms that begins as a head of Vorbis does."""
    page = b"OggS\0\0" + bytes(20) + b"\x01\x03\x01v\xff"
    return opus(0.02) + page * (50 * seconds)


def opus_beside_its_head(pages: int) -> bytes:
    """Each first page of a stream has 2 s of sound behind the head."""
    packets = [b"OpusHead" + bytes(11), *[bytes([TWENTY_MS]) + bytes(79)] * 100]
    page = b"OggS\0\2" + bytes(20) + bytes([len(packets), *map(len, packets)]) + b"".join(packets)
    return opus(0.02) + page * pages


def _boxes(data: bytes) -> dict[bytes, bytes]:
    found, at = {}, 0
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        found[name], at = data[at : at + size], at + size
    return found


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


def _with(data: bytes, path: list[bytes], change: bytes, to: bytes) -> bytes:
    """The box at ``path`` with something else in it, and the lengths of those around it."""
    if not path:
        return data.replace(change, to, 1)
    boxes = _boxes(data)
    boxes[path[0]] = _box(path[0], _with(boxes[path[0]][8:], path[1:], change, to))
    return b"".join(boxes.values())


def mp4_in(name: bytes) -> bytes:
    """The movie lies in a box ``name``, before one that plays 64 ms."""
    boxes = _boxes(mp4(62))
    moov = boxes.pop(b"moov")
    held = moov[8:] if name == b"free" else moov
    return b"".join(boxes.values()) + _box(name, held) + _boxes(mp4(0.064))[b"moov"]


def packed_mp4() -> bytes:
    boxes, short = _boxes(mp4(62)), _boxes(mp4(0.064))[b"moov"]
    moov = boxes.pop(b"moov")
    packed = struct.pack(">I", len(moov)) + zlib.compress(moov)
    hidden = _box(b"cmov", _box(b"dcom", b"zlib") + _box(b"cmvd", packed))
    return b"".join(boxes.values()) + _box(b"moov", hidden + short[8:])


def nameless_mp4() -> bytes:
    """A track of sound that calls itself something else, beside one of 64 ms."""
    boxes, short = _boxes(mp4(62)), _boxes(_boxes(mp4(0.064))[b"moov"][8:])[b"trak"]
    moov = boxes.pop(b"moov").replace(b"soun", b"xxxx")
    return b"".join(boxes.values()) + _box(b"moov", moov[8:] + short)


def far_mp4(room: int) -> bytes:
    """Before the decoder's settings stand others, of sound at 16 MHz, and ``room`` bytes."""
    other = b"\x04\x15\x40\x15" + bytes(11) + b"\x05\x05"
    other += (2 << 35 | 15 << 31 | 0xFFFFFF << 7 | 1 << 3).to_bytes(5, "big")
    data = mp4(62)
    filler = _box(b"free", other + bytes(room))
    entry = data[data.index(b"mp4a") - 4 :]
    size = struct.unpack(">I", entry[:4])[0]
    wider = struct.pack(">I", size + len(filler)) + entry[4:36] + filler + entry[36:size]
    path = [b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd"]
    return _with(data, path, entry[:size], wider)


def twice_described_mp4(told: bytes, to: bytes) -> bytes:
    """The track has a second ``stsd``, in which ``told`` is another."""
    data = mp4(62)
    begins = data.index(b"stsd") - 4
    first = data[begins : begins + struct.unpack(">I", data[begins : begins + 4])[0]]
    path = [b"moov", b"trak", b"mdia", b"minf", b"stbl"]
    return _with(data, path, first, first + first.replace(told, to))


def twice_numbered_mp4() -> bytes:
    """Its fragments are of the first of two numbers."""
    data = mp4(0.01, frames=969, fragmented=True)
    begins = data.index(b"tkhd") - 4
    first = data[begins : begins + struct.unpack(">I", data[begins : begins + 4])[0]]
    second = first[:20] + struct.pack(">I", 9) + first[24:]
    return _with(data, [b"moov", b"trak"], first, first + second)


AT_16_KHZ, AT_96_KHZ = b"\x05\x02\x14\x08", b"\x05\x02\x10\x08"
UNKNOWN = {
    "mp3.wav": in_wav(mp3(2400)),
    "aac.wav": in_wav(ADTS * 1000),
    "long-aac.wav": in_wav(LONG_ADTS * 40),
    "full-mp3.wav": in_wav(FULL_MP3 * 20),
    "latm.wav": in_wav(LOAS * 1000),
    "ac3.wav": in_wav(AC3 * 1292),
    "eac3.wav": in_wav(EAC3 * 1292),
    "dts.wav": in_wav(DTS * 2000),
    "spdif.wav": in_bursts(AC3),
    "aac.mp3": mp3(3) + ADTS * 1000,
    "udta.mp4": mp4_in(b"udta"),
    "free.mp4": mp4_in(b"free"),
    "cmov.mp4": packed_mp4(),
    "far.mp4": far_mp4(5000),
    "alac.mp4": twice_described_mp4(b"mp4a", b"alac"),
    "text.mp4": twice_described_mp4(b"mp4a", b"text"),
}
"""Files of which nobody can say how long they play."""
LONG = {
    "ima2.wav": ima(62, 2),
    "ima3.wav": ima(62, 3),
    "frames.mp3": frames_in_frames(861),
    "heads.ogg": opus_like_vorbis(62),
    "first.ogg": opus_beside_its_head(31),
    "nameless.mp4": nameless_mp4(),
    "near.mp4": far_mp4(0),
    "fast.mp4": twice_described_mp4(AT_16_KHZ, AT_96_KHZ),
    "ids.mp4": twice_numbered_mp4(),
}
"""Files that play for 62 s, as can be seen."""
