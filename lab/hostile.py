"""Hand-ins that attack grading: the process that reads them, the sandbox, the tables, and points they have not earned.

`archives` are uploads made to stop or mislead whoever reads them; `BODIES` are functions of an exercise that run in the
sandbox. None may get a point, and no other hand-in may notice. Used by lab/course.py and tests/test_grading.py.
"""

import io
import os
import struct
import zipfile

FILE = "loss.py"


def zipped(members, compression=zipfile.ZIP_DEFLATED):
    """The bytes of a zip with these members, {name: text or bytes}."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


def broken_lzma():
    data = zipped({FILE: "x = 1\n" * 999}, zipfile.ZIP_LZMA)
    return data[:41] + b"\xff" * 5 + data[46:]


def encrypted():
    """A zip whose member says that it is encrypted."""
    data = bytearray(zipped({FILE: "x = 1\n"}))
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    return bytes(data)


def huge_on_paper():
    """A zip whose directory says that a small member unpacks to 4 GB."""
    data = bytearray(zipped({FILE: "x = 1\n"}))
    place = data.rindex(b"PK\1\2") + 24
    data[place : place + 4] = struct.pack("<I", 0xFFFFFFF0)
    return bytes(data)


def matryoshka():
    """Zips within zips, 40 deep."""
    data = zipped({FILE: "x = 1\n"})
    for _ in range(40):
        data = zipped({"handin.zip": data})
    return data


def texts():
    """{name of the upload: text of its file}."""
    chain = "\n".join(f"def f{n}(x):\n    return f{n + 1}(x)" for n in range(5000))
    many = "\n".join(f"a{n} = b{n} = {n}" for n in range(9000))
    return {
        "chain of targets": "cispo=" * 40000 + "1",
        "minus signs": "x = " + "-" * 200_000 + "1",
        "plus signs": "x = " + "1 + " * 60_000 + "1",
        "brackets": "x = " + "(" * 190 + ")" * 190 + "[" * 99_999,
        "tuples": "def importance_ratio(a, b, c):\n    return " + "(" * 150 + "1," + "),(" * 150,
        "a chain of calls": f"{chain}\n\n\ndef importance_ratio(a, b, c):\n    return f0(a)",
        "names": f"{many}\n\n\ndef importance_ratio(a, b, c):\n    return {' + '.join(f'a{n}' for n in range(9000))}",
        "definitions": "def importance_ratio(a, b, c):\n    return a\n" * 5000,
        "methods": "class importance_ratio:\n" + "".join(f"    def m{n}(self): pass\n" for n in range(9000)),
        "decorators": "@f\n" * 60_000 + "def importance_ratio(a, b, c):\n    return a",
        "a long number": "importance_ratio = " + "9" * 250_000,
        "a long string": f"importance_ratio = '{'x' * 250_000}' * 99999",
        "null bytes": "x = 1\0",
        "form feeds": "\f" * 200_000,
        "escapes": "def importance_ratio(a, b, c):\n    \x1b[2J\x07 = 1",
        "lambdas": "importance_ratio = " + "lambda: " * 20_000 + "1",
        "formats": "importance_ratio = " + "f'{" * 3 + "1" + "}'" * 3,
    }


def archives():
    """{name of the upload: bytes}."""
    found = {name: zipped({FILE: text}) for name, text in texts().items()}
    return found | {
        "no zip": b"PK\3\4" + b"\0" * 99,
        "empty": b"",
        "not utf-8": zipped({FILE: "def importance_ratio(): é".encode("latin-1")}),
        "utf-16": zipped({FILE: "x = 1\n".encode("utf-16")}),
        "names of no encoding": zipped({"löss.py": "x"}).replace("ö".encode(), b"\xff\xfe"),
        "broken lzma": broken_lzma(),
        "encrypted": encrypted(),
        "huge on paper": huge_on_paper(),
        "matryoshka": matryoshka(),
        "many entries": zipped(dict.fromkeys(map(str, range(60_000)), "")),
        "zips in a zip": zipped({f"{n}.zip": zipped({"a": b"0" * 9_000_000}, 0) for n in range(4)}),
        "a bomb": zipped({"a.zip": b"0" * 400_000_000}),
        "the same file often": zipped({f"{n}/{FILE}": "x = 1\n" for n in range(1500)}),
        "upwards": zipped({f"../../../{FILE}": "x", "/etc/passwd": "x", f"C:\\{FILE}": "x"}),
        "a commit to break tables": zipped({FILE: "x", "commit": "\x1b[2J\n\r\n=1+1,\"';--"}),
        "=HYPERLINK(1)": zipped({FILE: "x"}),
        "\x1b[2J\x1b[31m": zipped({FILE: "x"}),
        'two\nlines,"': zipped({FILE: "x"}),
        "\u202egnp": zipped({FILE: "x"}),
        "latin-1 \udce9": zipped({FILE: "x"}),
        "-rf": zipped({FILE: "x"}),
        "x" * 240: zipped({FILE: "x"}),
    }


def write(folder):
    """Write the archives, a pipe, a link, and a folder of folders into `folder`; returns how many uploads they are."""
    for name, data in archives().items():
        (folder / f"{name}.zip").write_bytes(data)
    os.mkfifo(folder / "a pipe.zip")
    (folder / "a link.zip").symlink_to("/dev/zero")
    place = folder / "folders"
    for _ in range(300):
        place = place / "d"
    place.mkdir(parents=True)
    (folder / "folders" / FILE).mkdir()
    (folder / "folders" / "commit").symlink_to("/etc/passwd")
    return len(archives()) + 3


# --- In the sandbox: what they return must never be worth a point ----------------------------------------------------

BODIES = {
    "looks for the answer in frames": """import sys, torch
frame, seen = sys._getframe(), []
while frame:
    seen += [*frame.f_globals.values(), *frame.f_locals.values()]
    frame = frame.f_back
found = [x for x in seen if isinstance(x, torch.Tensor) and x.shape == args[0].shape]
return found[-1]""",
    "looks for the answer among all objects": """import gc, torch
found = [x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.shape == args[0].shape]
return found[0] if found else None""",
    "replaces the harness": """import sys
for name in ("harness", "__main__"):
    sys.modules[name].answer = lambda *_: [0.0, 2.0, 2.0, 4.0, -1.0, -1.0] + [1.0] * 8
return None""",
    "replaces encode": """import sys
sys.modules["harness"].encode = lambda value: [0.0, 2.0, 2.0, 4.0, -1.0, -1.0] + [1.0] * 8
return 1""",
    "replaces struct.pack": """import struct
struct.pack = lambda *_: bytes(8 * 28)
return 1.0""",
    "writes the answer itself": """import os, struct
for place in range(20):
    try:
        os.write(place, struct.pack("28d", *([0.0, 2.0, 2.0, 4.0, -1.0, -1.0] + [1.0] * 8) * 2))
    except OSError:
        pass
os._exit(0)""",
    "nan": "return args[0] * float('nan')",
    "infinite": "return args[0] * 0 + float('inf')",
    "complex": "return args[0].to(dtype=__import__('torch').complex64)",
    "sparse": "return args[0].nan_to_num().to_sparse()",
    "on the meta device": "return args[0].to('meta')",
    "an array of objects": "import numpy as np\nreturn np.array([object()])",
    "a list that holds itself": "x = []\nx.append(x)\nreturn x",
    "a number that lies": """class Lies(float):
    __eq__ = __le__ = __lt__ = __ge__ = __gt__ = lambda *_: True
    __sub__ = __rsub__ = __abs__ = lambda *_: 0.0
return Lies(1)""",
    "claims to be numpy": "X = type('X', (), {'__module__': 'numpy', 'tolist': lambda self: iter(int, 1)})\nreturn X()",
    "a huge result": "import torch\nreturn torch.zeros(1, 1).expand(1 << 20, 1 << 20)",
    "an error whose text never ends": """class Endless(Exception):
    def __str__(self):
        while True:
            pass
raise Endless""",
    "an error that says memory": "raise ValueError('cannot allocate memory')",
    "an error in an error": """class Bad(BaseException):
    def __str__(self):
        raise Bad
raise Bad""",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "kills what it can": """import os, signal
for pid in (-1, 0, 1, os.getppid()):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
return 1""",
    "ends with a fault": "import ctypes\nctypes.string_at(0)",
    "recurses": "import sys\nsys.setrecursionlimit(1 << 30)\nf = lambda x: f([x])\nreturn f(1)",
    "leaves daemons": """import os, time
for _ in range(5):
    if not os.fork():
        os.setsid()
        time.sleep(1000)
return 1""",
    "fills the disk": "open('/tmp/full', 'w').write('x' * (1 << 28))\nreturn 1",
    "fills memory": "x = ['x' * (1 << 28) for _ in range(100)]\nreturn 1",
    "writes to the packages": """import torch
open(torch.__file__, "a").write("x")
return 1""",
    "mounts": "import ctypes\nassert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0\nreturn 1",
    "threads": "import threading\nwhile True:\n    threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
    "floods the output": "import os\nwhile True:\n    os.write(1, b'x' * (1 << 20)); os.write(2, b'x' * (1 << 20))",
    "asks the network": "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)\nreturn right(*args)",
    "reads the project": "import loss\nreturn loss.importance_ratio(*args)",
    "knows the course's own numbers": "return [[2.0, 8.0, 1.0, 1.0], [0.5, 8.0, 1.0, 1.0]]",
    "counts its calls": "calls = globals().setdefault('calls', [])\ncalls.append(1)\nreturn args[0] * len(calls)",
}
