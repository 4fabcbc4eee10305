"""Sound and documents, made by the formats' own rules."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from base64 import b64encode

from PIL import Image

from gateway.metering.encoded_file import EncodedFile


def coded(data: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def file_of(data: bytes) -> EncodedFile:
    return EncodedFile(b64encode(data).decode())


def wav(seconds: float, *, rate: int = 16_000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(b"\0\0" * channels * int(seconds * rate))
    return file.getvalue()


def mp3(frames: int, *, index: int | None = None, tag: int = 0) -> bytes:
    """Frames of 128 kbit/s at 44.1 kHz, of which each lasts 1152 samples; with an encoder's ``index`` of so many."""
    frame = b"\xff\xfb\x90\xc4" + bytes(413)
    first = frame
    if index is not None:
        first = frame[:21] + b"Xing" + struct.pack(">II", 1, index) + frame[33:]
    head = (
        b"ID3\x04\0\0"
        + bytes([tag >> 21 & 0x7F, tag >> 14 & 0x7F, tag >> 7 & 0x7F, tag & 0x7F])
        + b"\xff" * tag
    )
    return (head if tag else b"") + first + frame * (frames - 1)


def mp4(
    seconds: float,
    *,
    wide: bool = False,
    first: bool = False,
    frames: int | None = None,
    fragmented: bool = False,
) -> bytes:
    """AAC of 16 kHz, with its header before or after the sound; ``wide`` as longer ones have it. Its head says
    ``seconds``, its tables have as many ``frames``."""
    scale, duration = 1000, int(seconds * 1000)
    times = (
        struct.pack(">QQIQ", 0, 0, scale, duration) if wide else struct.pack(">IIII", 0, 0, scale, duration)
    )
    if frames is None:
        frames = round(seconds * 16_000 / 1024)
    config = b"\x05\x02" + struct.pack(">H", 2 << 11 | 8 << 7 | 1 << 3)
    decoder = b"\x04\x11\x40\x15" + bytes(11) + config
    esds = _box(b"esds", bytes(4) + b"\x03\x19\x00\x01\x00" + decoder + b"\x06\x01\x02")
    entry = _box(
        b"mp4a", bytes(6) + b"\x00\x01" + bytes(8) + struct.pack(">HHII", 1, 16, 0, 16_000 << 16) + esds
    )
    sizes = struct.pack(">III", 0, 64, 0 if fragmented else frames)
    table = _box(b"stbl", _box(b"stsd", struct.pack(">II", 0, 1) + entry) + _box(b"stsz", sizes))
    handler = _box(b"hdlr", bytes(8) + b"soun" + bytes(13))
    place = bytes([wide, 0, 0, 0]) + bytes(16 if wide else 8)
    track = _box(
        b"trak",
        _box(b"tkhd", place + struct.pack(">I", 1) + bytes(60))
        + _box(b"mdia", handler + _box(b"minf", table)),
    )
    header = _box(b"mvhd", bytes([wide, 0, 0, 0]) + times + bytes(80))
    sound, movie = _box(b"mdat", b"\xff" * 5000, wide=wide), _box(b"moov", header + track)
    if fragmented:
        run = _box(b"trun", struct.pack(">II", 0, frames))
        fragment = _box(b"traf", _box(b"tfhd", struct.pack(">II", 0, 1)) + run)
        sound, first = _box(b"moof", fragment) + sound, True
    return _box(b"ftyp", b"M4A \0\0\0\0") + (movie + sound if first else sound + movie)


def _box(name: bytes, content: bytes, *, wide: bool = False) -> bytes:
    if wide:
        return struct.pack(">I4sQ", 1, name, 16 + len(content)) + content
    return struct.pack(">I4s", 8 + len(content), name) + content


def flac(samples: int, rate: int = 44_100, *, told: int | None = None, named: bool = False) -> bytes:
    """Frames of 4,096 samples, whose sound is none; its head says ``told``. ``named``: each frame says the rate."""
    told = samples if told is None else told
    info = bytes(10) + struct.pack(">Q", rate << 44 | 1 << 41 | 15 << 36 | told) + bytes(16)
    frames = bytearray()
    for number in range(-(-samples // 4096)):
        size = min(4096, samples - 4096 * number)
        code = chr(number).encode("utf-8", "surrogatepass")
        head = b"\xff\xf8" + bytes([7 << 4 | (13 if named else 0), 0x08]) + code + struct.pack(">H", size - 1)
        head += struct.pack(">H", rate) if named else b""
        frames += head + bytes([_crc8(head)]) + b"\x00\xff\xf8\x70\x08\xff" * 4
    return b"fLaC\x80\0\0\x22" + info + bytes(frames)


def _crc8(data: bytes) -> int:
    value = 0
    for byte in data:
        for bit in range(7, -1, -1):
            over = value >> 7 ^ (byte >> bit & 1)
            value = (value << 1 & 0xFF) ^ (0x07 if over else 0)
    return value


TWENTY_MS = 9 << 3
"""How a packet of Opus begins: SILK, wide band, one frame of 20 ms."""


def opus(seconds: float, *, told: float | None = None, head: bytes = b"OpusHead" + bytes(11)) -> bytes:
    """Pages of a second; the last says ``told``."""

    def page(flags: int, place: float, packets: list[bytes]) -> bytes:
        body = b"".join(packets)
        start = b"OggS\0" + bytes([flags]) + struct.pack("<q", int(place * 48_000)) + bytes(12)
        return start + bytes([len(packets), *map(len, packets)]) + body

    packet = bytes([TWENTY_MS]) + bytes(79)
    number = round(seconds * 50)
    pages = [page(2, 0, [head]), page(0, 0, [b"OpusTags" + bytes(8)])]
    for start in range(0, number, 50):
        count = min(50, number - start)
        pages.append(page(0, (start + count) / 50 if told is None else told, [packet] * count))
    return b"".join(pages)


def webm(seconds: float, *, codec: bytes = b"A_OPUS") -> bytes:
    """As a browser records it: lengths of clusters, and of the whole, are unknown."""

    def element(name: str, content: bytes) -> bytes:
        return bytes.fromhex(name) + (0x10000000 | len(content)).to_bytes(4, "big") + content

    unknown = b"\x01" + b"\xff" * 7
    entry = element("AE", element("D7", b"\x01") + element("86", codec) + element("83", b"\x02"))
    file = element("1A45DFA3", element("4282", b"webm")) + bytes.fromhex("18538067") + unknown
    file += element("1549A966", element("4489", struct.pack(">d", 20.0))) + element("1654AE6B", entry)
    block = element("A3", b"\x81\0\0\x80" + bytes([TWENTY_MS]) + bytes(79))
    for start in range(0, round(seconds * 50), 50):
        file += bytes.fromhex("1F43B675") + unknown + element("E7", b"\0")
        file += block * min(50, round(seconds * 50) - start)
    return file


def pdf(pages: int) -> bytes:
    """With a table of cross-references, as PIL writes it."""
    file = io.BytesIO()
    sheets = [Image.new("1", (8, 8)) for _ in range(pages)]
    sheets[0].save(file, "PDF", save_all=True, append_images=sheets[1:])
    return file.getvalue()


def packed_pdf(pages: int, *, predictor: int = 12, count: int | None = None) -> bytes:
    """With its objects and cross-references in packed streams, as most writers do since PDF 1.5."""
    kids = b" ".join(b"%d 0 R" % (5 + i) for i in range(pages))
    objects = [
        (1, b"<</Type/Catalog/Pages 2 0 R>>"),
        (2, b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, count or pages)),
        *((5 + i, b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>") for i in range(pages)),
    ]
    places, at = b"", 0
    for number, body in objects:
        places += b"%d %d " % (number, at)
        at += len(body) + 1
    data = zlib.compress(places + b"\n".join(body for _, body in objects))
    out = b"%PDF-1.7\n"
    stream_at = len(out)
    out += b"3 0 obj\n<</Type/ObjStm/N %d/First %d/Filter/FlateDecode/Length %d>>\nstream\n" % (
        len(objects),
        len(places),
        len(data),
    )
    out += data + b"\nendstream\nendobj\n"
    xref_at = len(out)
    rows = [(0, 0, 0), (2, 3, 0), (2, 3, 1), (1, stream_at, 0), (1, xref_at, 0)]
    rows += [(2, 3, 2 + i) for i in range(pages)]
    plain = [struct.pack(">BHH", *row) for row in rows]
    if predictor == 1:
        table, how = b"".join(plain), b""
    else:
        above = [bytes(5), *plain]
        table = b"".join(
            b"\2" + bytes((a - b) & 0xFF for a, b in zip(row, before, strict=True))
            for row, before in zip(plain, above, strict=False)
        )
        how = b"/DecodeParms<</Columns 5/Predictor 12>>"
    table = zlib.compress(table)
    out += b"4 0 obj\n<</Type/XRef/W[1 2 2]/Size %d/Root 1 0 R/Filter/FlateDecode%s/Length %d>>\nstream\n" % (
        len(rows),
        how,
        len(table),
    )
    return out + table + b"\nendstream\nendobj\nstartxref\n%d\n%%%%EOF\n" % xref_at


def tree_pdf(*nodes: bytes, head: bytes = b"") -> bytes:
    """Whose tree of pages begins with the first of these objects, of number 2."""
    out, places = b"%PDF-1.4\n" + head, []
    for number, body in enumerate((b"<</Type/Catalog/Pages 2 0 R>>", *nodes), 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, len(out))
    return out + b"xref\n1 %d\n" % len(places) + table + trailer
