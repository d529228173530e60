"""An independent reader of what traces are saved as, for the specs.

  exports.py snapshot FILE        a pickle: what PyTorch's viewer needs of it, then its events and segments, one a line
  exports.py check FILE...        the same, of many, without the lines
  exports.py same FILE FILE       whether two pickles hold equal values
  exports.py repickle FILE FILE N the first, written again by Python with protocol N
  exports.py chrome FILE          Chrome trace JSON: what Perfetto needs of it, then its slices and counters
  exports.py rmm FILE             an RMM log, parsed the way RMM's replay does

Exits with 1 and says why when something is not as it has to be.
"""

import csv
import json
import pickle
import pickletools
import sys

# The opcodes that the viewer implements.
VIEWER = set(
    "PROTO EMPTY_DICT EMPTY_LIST EMPTY_TUPLE MARK BINUNICODE SHORT_BINUNICODE BININT1 BININT2 BININT LONG1 BINFLOAT "
    "NEWTRUE NEWFALSE NONE TUPLE LIST DICT TUPLE1 TUPLE2 TUPLE3 SETITEMS SETITEM APPEND APPENDS BINGET LONG_BINGET "
    "BINPUT LONG_BINPUT MEMOIZE FRAME STOP".split()
)
LIVE = ("active_allocated", "active_pending_free")


def need(condition, message, *arguments):
    if not condition:
        raise SystemExit(message % arguments)


class Plain(pickle.Unpickler):
    """Refuses every class and function."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError("%s.%s in the pickle" % (module, name))


def load(path):
    with open(path, "rb") as file:
        return Plain(file).load()


def check_opcodes(path):
    with open(path, "rb") as file:
        content = file.read()
    since_mark = []
    for opcode, argument, position in pickletools.genops(content):
        need(opcode.name in VIEWER, "opcode %s at %d", opcode.name, position)
        if opcode.name == "PROTO":
            need(2 <= argument <= 4, "protocol %d", argument)
        if opcode.name == "LONG1":
            need(-(2**63) <= argument < 2**63, "a long of more than 8 bytes at %d", position)
        # Values pushed since the innermost mark; a batch is the arguments of one call in the viewer.
        if opcode.name == "MARK":
            since_mark.append(0)
        elif opcode.name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
            count = since_mark.pop()
            need(opcode.name != "APPENDS" or count <= 1000, "%d elements in a batch at %d", count, position)
            if opcode.name in ("TUPLE", "LIST", "DICT") and since_mark:
                since_mark[-1] += 1
        elif since_mark:
            since_mark[-1] += len(opcode.stack_after) - len(opcode.stack_before)


def check_frames(frames):
    need(isinstance(frames, list), "frames are no list")
    for frame in frames:
        need(isinstance(frame["name"], str) and isinstance(frame["filename"], str), "a frame without a name")
        need(isinstance(frame["line"], int), "a frame without a line")


def check_segment(segment):
    address = segment["address"]
    need(0 < address < 2**53, "segment at %d", address)
    need(isinstance(segment["device"], int) and isinstance(segment["stream"], int), "a segment without a device")
    check_frames(segment["frames"])
    for block in segment["blocks"]:
        need(block["address"] == address, "block at %d, not at %d", block["address"], address)
        need(block["state"] in LIVE + ("inactive",), "state %s", block["state"])
        need(block["requested_size"] >= 0, "a block without a requested size")
        check_frames(block["frames"])
        address += block["size"]
    end = segment["address"] + segment["total_size"]
    need(address == end, "blocks do not fill the segment at %d", segment["address"])


class View:
    """The segments and live blocks at one moment, which undoing an event changes to those before it."""

    def __init__(self, segments):
        self.segments = {s["address"]: s["total_size"] for s in segments}
        self.blocks = {}
        for segment in segments:
            for block in segment["blocks"]:
                if block["state"] in LIVE:
                    self.add(block["address"])

    def holder(self, address):
        return next((a for a, size in self.segments.items() if a <= address < a + size), None)

    def add(self, address):
        need(self.holder(address) is not None, "the block at 0x%x is in no segment", address)
        need(address not in self.blocks, "a block at 0x%x twice", address)
        self.blocks[address] = True

    def undo(self, event):
        action, address = event["action"], event.get("addr")
        if action == "free_completed":
            self.add(address)
        elif action == "free_requested":
            need(address in self.blocks, "free_requested at 0x%x of no block", address)
        elif action == "alloc":
            need(self.holder(address) is not None, "the block at 0x%x is allocated in no segment", address)
            need(address in self.blocks, "alloc at 0x%x of no block", address)
            del self.blocks[address]
        elif action == "segment_free":
            need(address not in self.segments, "the segment at 0x%x twice", address)
            self.segments[address] = event["size"]
        elif action == "segment_alloc":
            need(self.segments.get(address) == event["size"], "segment_alloc at 0x%x of no segment", address)
            inside = [b for b in self.blocks if address <= b < address + event["size"]]
            need(not inside, "blocks outlive the segment at 0x%x", address)
            del self.segments[address]
        elif action == "segment_unmap":
            self.join(address, event["size"])
        elif action == "segment_map":
            self.cut(address, event["size"])
        else:
            need(action in ("oom", "snapshot"), "action %s", action)

    def join(self, address, size):
        need(self.holder(address) is None, "0x%x is mapped twice", address)
        below = self.holder(address - 1)
        if below is not None:
            size += self.segments.pop(below)
            address = below
        size += self.segments.pop(address + size, 0)
        self.segments[address] = size

    def cut(self, address, size):
        holder = self.holder(address)
        need(holder is not None, "segment_map at 0x%x of no segment", address)
        end = holder + self.segments.pop(holder)
        need(address + size <= end, "segment_map at 0x%x beyond its segment", address)
        inside = [b for b in self.blocks if address <= b < address + size]
        need(not inside, "blocks outlive the mapping at 0x%x", address)
        if holder < address:
            self.segments[holder] = address - holder
        if address + size < end:
            self.segments[address + size] = end - address - size


def check_event(event):
    need(event["action"] == "oom" or 0 < event["addr"] < 2**53, "event at %r", event.get("addr"))
    need(event["action"] != "oom" or event["device_free"] >= 0, "oom without device_free")
    for name in ("size", "stream", "time_us"):
        need(isinstance(event[name], int), "an event without %s", name)
    check_frames(event.get("frames", []))
    need("category" not in event, "a category")


def check(path):
    check_opcodes(path)
    top = load(path)
    for segment in top["segments"]:
        check_segment(segment)
        need(segment["device"] < len(top["device_traces"]), "no trace of device %d", segment["device"])
    for device, events in enumerate(top["device_traces"]):
        for event in events:
            check_event(event)
        view = View([s for s in top["segments"] if s["device"] == device])
        for event in reversed(events):
            view.undo(event)
    return top


def snapshot(path):
    top = check(path)
    for events in top["device_traces"]:
        for e in events:
            address = e["device_free"] if e["action"] == "oom" else e["addr"]
            print(e["action"], address, e["size"], e["stream"], e["time_us"])
    for segment in top["segments"]:
        print("segment", segment["address"], segment["total_size"], segment["stream"])
        for block in segment["blocks"]:
            print("block", block["address"], block["size"], block["requested_size"], block["state"])


def same(first, second):
    need(load(first) == load(second), "%s and %s differ", first, second)


def repickle(source, path, protocol):
    value = load(source)
    with open(path, "wb") as file:
        # The implementation in Python memoizes and frames differently from the one in C.
        pickler = pickle._Pickler if protocol % 2 else pickle.Pickler
        pickler(file, protocol).dump(value)


def chrome(path):
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    rows, counters = {}, []
    for event in events:
        need(event["ph"] in "MCXi", "phase %s", event["ph"])
        need(event["ph"] == "M" or isinstance(event["ts"], int) and event["ts"] >= 0, "an event without a time")
        if event["ph"] == "X":
            need(event["dur"] >= 0, "a slice of %d us", event["dur"])
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
            arguments = event["args"]
            end = event["ts"] + event["dur"]
            print(event["cat"], int(arguments["address"], 16), arguments["size"], event["ts"], end)
        elif event["ph"] == "C":
            counters.append((event["ts"], *(event["args"][k] for k in ("reserved", "active", "requested"))))
    for slices in rows.values():
        slices.sort()
        need(all(a[1] <= b[0] for a, b in zip(slices, slices[1:])), "slices of a row overlap")
    need(counters == sorted(counters, key=lambda c: c[0]), "counters go back in time")
    for counter in counters:
        need(counter[1] >= counter[2] >= counter[3] >= 0, "more requested than active than reserved: %r", counter)
        print("counter", *counter)


def rmm(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    live = set()
    for row in rows:
        pointer = 0 if row["Pointer"] == "(nil)" else int(row["Pointer"], 16)
        need(row["Stream"].isdecimal(), "stream %s", row["Stream"])
        need(row["Action"] in ("allocate", "free", "allocate failure"), "action %s", row["Action"])
        if row["Action"] == "allocate" and pointer:
            need(pointer not in live, "0x%x is allocated twice", pointer)
            live.add(pointer)
        elif row["Action"] == "free" and pointer:
            need(pointer in live, "0x%x is freed and not live", pointer)
            live.remove(pointer)
        print(int(row["Thread"]), row["Time"], row["Action"], pointer, int(row["Size"]), int(row["Stream"]))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "repickle":
        repickle(arguments[0], arguments[1], int(arguments[2]))
    else:
        {"snapshot": snapshot, "check": lambda *paths: [check(p) for p in paths], "same": same, "chrome": chrome, "rmm": rmm}[command](*arguments)
