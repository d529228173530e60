-- Text made on the device: strings that grow as they are written, and one text from all of them.
--
-- Work-item n writes its number in words, into a string that realloc makes longer. Further kernels add up the lengths,
-- allocate a block of the length that came out, and copy the strings into it, one behind the other. The host reads that
-- block by its reference, and frees it.
--
-- You will see the beginning and the length of the text, and at the end "Lua writes the same". The argument is the
-- highest number (2000).

local cl = require "clalloc"

local N = math.tointeger(arg[1] or 2000)

local SOURCE = [[
typedef struct string {
  uint length, room;
} string; /* its characters lie behind it */

static global char *text_of(global string *s) { return (global char *)(s + 1); }

/* The string with one character more, perhaps elsewhere; null when there is no room, and then it is freed. */
static global string *append(global string *s, char c) {
  if (!s || s->length == s->room) {
    const uint length = s ? s->length : 0, room = s ? 2 * s->room : 8;
    global string *moved = realloc(s, sizeof(string) + room);
    if (!moved) {
      free(s);
      return 0;
    }
    s = moved;
    s->length = length;
    s->room = room;
  }
  text_of(s)[s->length++] = c;
  return s;
}

constant char words[][10] = WORDS;

/* Which words a number is said in, at most four and nine; their count. */
static uint words_below_thousand(uint number, uchar *out) {
  uint n = 0;
  if (number >= 100) {
    out[n++] = number / 100;
    out[n++] = 28;
    number %= 100;
  }
  if (number >= 20) {
    out[n++] = 18 + number / 10;
    number %= 10;
  }
  if (number) out[n++] = number;
  return n;
}

static uint words_of(uint number, uchar *out) {
  uint n = 0;
  if (number >= 1000) {
    n = words_below_thousand(number / 1000, out);
    out[n++] = 29;
  }
  return n + words_below_thousand(number % 1000, out + n);
}

/* Each word's characters, and where it ends a space or the end of the line. */
kernel void spell(global ulong *strings) {
  uchar list[9];
  const uchar *end = list + words_of(get_global_id(0) + 1, list);
  global string *s = 0;
  for (const uchar *next = list; next < end; next++) {
    constant char *word = words[*next];
    for (uint k = 0; k == 0 || word[k - 1]; k++) s = append(s, word[k] ? word[k] : next + 1 < end ? ' ' : '\n');
  }
  strings[get_global_id(0)] = (ulong)s;
}

/* Where each string starts in the text: one item, as long as there are few. */
kernel void place(global const ulong *strings, uint n, global uint *starts) {
  uint at = 0;
  for (uint i = 0; i < n; i++) {
    starts[i] = at;
    at += ((global const string *)strings[i])->length;
  }
  starts[n] = at;
}

kernel void allocate(CLA_HEAP heap, global const uint *starts, uint n, global uint *ref) {
  *ref = cla_ref(heap, cla_malloc(heap, starts[n]));
}

kernel void join(CLA_HEAP heap, global ulong *strings, global const uint *starts, global const uint *ref) {
  const size_t i = get_global_id(0);
  global char *to = (global char *)cla_at(heap, *ref) + starts[i];
  global string *s = (global string *)strings[i];
  for (uint k = 0; k < s->length; k++) to[k] = text_of(s)[k];
  free(s);
}
]]

local UNITS = {
  "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
  "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
}
local TENS = { "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety" }

local function quoted()
  local list = {}
  for _, words in ipairs { UNITS, TENS, { "hundred", "thousand" } } do
    for _, word in ipairs(words) do list[#list + 1] = ("%q"):format(word) end
  end
  return "{" .. table.concat(list, ", ") .. "}"
end

local function spelt(number)
  if number >= 1000 then
    local rest = number % 1000
    return spelt(number // 1000) .. " thousand" .. (rest > 0 and " " .. spelt(rest) or "")
  elseif number >= 100 then
    local rest = number % 100
    return UNITS[number // 100 + 1] .. " hundred" .. (rest > 0 and " " .. spelt(rest) or "")
  elseif number >= 20 then
    local rest = number % 10
    return TENS[number // 10 - 1] .. (rest > 0 and " " .. UNITS[rest + 1] or "")
  end
  return UNITS[number + 1]
end

local dev <close> = cl.device()
local heap = dev.heap
local program <close> = assert(dev:program(SOURCE, { heap = true, defines = { WORDS = quoted() } }))
local strings <close> = assert(dev:alloc(8 * N))
local starts <close> = assert(dev:alloc(4 * (N + 1)))
local answer <close> = assert(dev:alloc(4))

assert(program.spell { strings, size = N })
assert(program.place { strings, N, starts, size = 1 })
assert(program.allocate { heap, starts, N, answer, size = 1 })
print(("%d strings and their text: %d bytes in the heap"):format(N, heap:stats().used))
assert(program.join { heap, strings, starts, answer, size = N })

local length, ref = string.unpack("<I4", starts:read(4 * N, 4)), string.unpack("<I4", answer:read())
local text = assert(heap:read(ref, length))
print(("%d characters: %s..."):format(length, text:sub(1, 40):gsub("\n", ", ")))
assert(heap:free(ref))

local number = 0
for line in text:gmatch "[^\n]*\n" do
  number = number + 1
  assert(line == spelt(number) .. "\n", ("%d: %s"):format(number, line))
end
assert(number == N)
local stats = heap:stats()
assert(heap:check() and stats.live_blocks == 0 and stats.failed == 0 and stats.bad_frees == 0)
print "Lua writes the same"
