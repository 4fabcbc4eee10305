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


def mp4(seconds: float, *, wide: bool = False, first: bool = False) -> bytes:
    """With its header before or after the sound; ``wide`` as longer ones have it."""
    scale, duration = 1000, int(seconds * 1000)
    times = (
        struct.pack(">QQIQ", 0, 0, scale, duration) if wide else struct.pack(">IIII", 0, 0, scale, duration)
    )
    header = _box(b"mvhd", bytes([wide, 0, 0, 0]) + times + bytes(80))
    sound, movie = _box(b"mdat", b"\xff" * 5000, wide=wide), _box(b"moov", header + _box(b"trak", bytes(40)))
    return _box(b"ftyp", b"M4A \0\0\0\0") + (movie + sound if first else sound + movie)


def _box(name: bytes, content: bytes, *, wide: bool = False) -> bytes:
    if wide:
        return struct.pack(">I4sQ", 1, name, 16 + len(content)) + content
    return struct.pack(">I4s", 8 + len(content), name) + content


def flac(samples: int, rate: int = 44_100) -> bytes:
    info = bytes(10) + struct.pack(">Q", rate << 44 | 1 << 41 | 15 << 36 | samples) + bytes(16)
    return b"fLaC\x80\0\0\x22" + info + bytes(1000)


def opus(seconds: float) -> bytes:
    def page(place: int, body: bytes) -> bytes:
        return b"OggS\0\0" + struct.pack("<q", place) + bytes(12) + b"\x01" + bytes([len(body)]) + body

    return (
        page(0, b"OpusHead" + bytes(11)) + page(4_000, bytes(200)) + page(int(seconds * 48_000), bytes(200))
    )


def pdf(pages: int) -> bytes:
    """With a table of cross-references, as PIL writes it."""
    file = io.BytesIO()
    sheets = [Image.new("1", (8, 8)) for _ in range(pages)]
    sheets[0].save(file, "PDF", save_all=True, append_images=sheets[1:])
    return file.getvalue()


def packed_pdf(pages: int, *, predictor: int = 12, count: int | None = None) -> bytes:
    """With its objects and cross-references in packed streams, as most writers do since PDF 1.5."""
    kids = b" ".join(b"%d 0 R" % (10 + i) for i in range(pages))
    objects = [
        (1, b"<</Type/Catalog/Pages 2 0 R>>"),
        (2, b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, count or pages)),
    ]
    places, at = b"", 0
    for number, body in objects:
        places += b"%d %d " % (number, at)
        at += len(body) + 1
    data = zlib.compress(places + b"\n".join(body for _, body in objects))
    out = b"%PDF-1.7\n"
    stream_at = len(out)
    out += b"3 0 obj\n<</Type/ObjStm/N 2/First %d/Filter/FlateDecode/Length %d>>\nstream\n" % (
        len(places),
        len(data),
    )
    out += data + b"\nendstream\nendobj\n"
    xref_at = len(out)
    rows = [(0, 0, 0), (2, 3, 0), (2, 3, 1), (1, stream_at, 0), (1, xref_at, 0)]
    plain = [struct.pack(">BHB", *row) for row in rows]
    if predictor == 1:
        table, how = b"".join(plain), b""
    else:
        above = [bytes(4), *plain]
        table = b"".join(
            b"\2" + bytes((a - b) & 0xFF for a, b in zip(row, before, strict=True))
            for row, before in zip(plain, above, strict=False)
        )
        how = b"/DecodeParms<</Columns 4/Predictor 12>>"
    table = zlib.compress(table)
    out += b"4 0 obj\n<</Type/XRef/W[1 2 1]/Size 5/Root 1 0 R/Filter/FlateDecode%s/Length %d>>\nstream\n" % (
        how,
        len(table),
    )
    return out + table + b"\nendstream\nendobj\nstartxref\n%d\n%%%%EOF\n" % xref_at
