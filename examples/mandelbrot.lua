-- The Mandelbrot set, computed on the device and written to an image file.
--
--   lua5.4 examples/mandelbrot.lua [FILE [WIDTH]]      mandelbrot.ppm, 1200 pixels wide, if not said otherwise
--
-- You will see: the file's name and size, how long the kernel took, and how many pixels belong to the set. The picture
-- shows the whole set, black on bands of blue and gold. PPM is a header of one line and three bytes a pixel; image
-- viewers show it, and `convert` or `pnmtopng` make other formats of it.

local cl = require "clalloc"

local PATH = arg[1] or "mandelbrot.ppm"
local WIDTH = math.tointeger(tonumber(arg[2] or 1200)) or error("WIDTH: a whole number expected, got " .. arg[2], 0)
local HEIGHT = WIDTH * 3 // 4

local SOURCE = [[
  enum { MOST = 1000 };

  /* Colours go round smoothly with the logarithm of the escape time. */
  uchar3 colour(float n) {
    const float t = 6.2831853f * log2(n + 1) / 5;
    return convert_uchar3_sat(255 * (0.5f - 0.5f * (float3)(cos(t), cos(t - 0.5f), cos(t - 1.1f))));
  }

  /* Four samples a pixel. Black where the point never leaves. */
  kernel void mandelbrot(global uchar *image, global int *members) {
    const int x = get_global_id(0), y = get_global_id(1), width = get_global_size(0), height = get_global_size(1);
    const float step = 3.2f / width;
    float3 sum = 0;
    int inside = 0;
    for (int sample = 0; sample < 4; sample++) {
      const float cr = -0.75f + (x - 0.5f * width + 0.25f + 0.5f * (sample & 1)) * step;
      const float ci = (y - 0.5f * height + 0.25f + 0.5f * (sample >> 1)) * step;
      float zr = 0, zi = 0;
      int n = 0;
      for (; n < MOST && zr * zr + zi * zi < 256; n++) {
        const float r = zr * zr - zi * zi + cr;
        zi = 2 * zr * zi + ci;
        zr = r;
      }
      if (n == MOST) inside++;
      else sum += convert_float3(colour(n + 1 - log2(0.5f * log2(zr * zr + zi * zi))));
    }
    vstore3(convert_uchar3_sat_rte(sum / 4), y * width + x, image);
    if (inside == 4) atomic_inc(members);
  }
]]

local dev <close> = cl.device()
local image <close> = assert(dev:alloc(3 * WIDTH * HEIGHT))
local members <close> = assert(dev:alloc(4))
members:fill(0)
local event <close> = dev:program(SOURCE).mandelbrot { image, members, size = { WIDTH, HEIGHT } }
event:wait()

do
  local file <close> = assert(io.open(PATH, "wb"))
  assert(file:write(("P6 %d %d 255\n"):format(WIDTH, HEIGHT), image:read()))
end
local count = string.unpack("<i4", members:read())
print(("%s: %d x %d pixels"):format(PATH, WIDTH, HEIGHT))
print(("%.1f ms on %s; %.1f %% of the pixels belong to the set"):format(
  event:seconds() * 1e3, dev.name, 100 * count / (WIDTH * HEIGHT)))
