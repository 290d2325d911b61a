"""Makes profiles in the format of pprof, from the definition of `profile.proto`."""


def varint(value):
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(made + bytes([value]))


def field(number, value):
    """A field with a number, a text or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(*fields):
    return b"".join(field(number, value) for number, value in fields)


def profile(samples, types=(("allocations", "count"), ("space", "bytes"))):
    """Of samples with a list of values, a dictionary of labels and a list of (file, line, function), the innermost first."""
    texts = {"": 0}

    def text(value):
        return texts.setdefault(value, len(texts))

    made = [field(1, message((1, text(kind)), (2, text(unit)))) for kind, unit in types]
    locations = {}
    for values, labels, frames in samples:
        numbers = [locations.setdefault(frame, len(locations) + 1) for frame in frames]
        parts = [(1, b"".join(map(varint, numbers))), (2, b"".join(varint(value & (1 << 64) - 1) for value in values))]
        parts += [(3, message((1, text(key)), (2, text(value)))) for key, value in labels.items()]
        made.append(field(2, message(*parts)))
    for (file, line, name), number in locations.items():
        made.append(field(4, message((1, number), (4, message((1, number), (2, line))))))
        made.append(field(5, message((1, number), (2, text(name)), (3, text(name)), (4, text(file)), (5, 1))))
    return b"".join(made + [field(6, value) for value in texts])
