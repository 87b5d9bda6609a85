/**
 * Colours of values.
 *
 * Both scales are computed in OKLab (Björn Ottosson, "A perceptual color space for image processing", 2020). The
 * lightness of the sequential scale rises evenly, so it is readable in grey and with every kind of colour blindness.
 */

export type Rgb = readonly [number, number, number]; // 0 to 255

/** Linear sRGB of a colour in OKLCH; hue in degrees. Channels outside of 0 to 1 are outside of sRGB. */
function linear(lightness: number, chroma: number, hue: number): Rgb {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

/** sRGB of a colour in OKLCH, with less chroma if it is outside of sRGB. */
export function oklch(lightness: number, chroma: number, hue: number): Rgb {
  const shown = (each: number): boolean =>
    linear(lightness, each, hue).every((value) => value >= 0 && value <= 1);
  let [low, high] = [0, chroma];
  if (!shown(chroma)) {
    for (let turn = 0; turn < 12; turn++) {
      const middle = (low + high) / 2;
      if (shown(middle)) low = middle;
      else high = middle;
    }
  } else low = chroma;
  const [red, green, blue] = linear(lightness, low, hue);
  return [gamma(red), gamma(green), gamma(blue)];
}

function gamma(channel: number): number {
  const value = Math.min(1, Math.max(0, channel));
  return Math.round(255 * (value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055));
}

const SIZE = 256;

/** Sequential scale from dark violet over blue and green to light yellow, as 256 colours. */
export const SEQUENTIAL: readonly Rgb[] = Array.from({ length: SIZE }, (_, index) => {
  const t = index / (SIZE - 1);
  const hue = 318 - 213 * t;
  const chroma = 0.105 - 0.025 * Math.sin(Math.PI * Math.min(1, t * 1.25)) + 0.06 * t ** 4;
  return oklch(0.22 + 0.72 * t, chroma, hue);
});

/** Diverging scale: blue below 0, nearly grey at 0, orange above 0. The lightness is the largest at 0. */
export const DIVERGING: readonly Rgb[] = Array.from({ length: SIZE }, (_, index) => {
  const t = (index / (SIZE - 1)) * 2 - 1;
  const size = Math.abs(t);
  return oklch(0.95 - 0.5 * size, 0.16 * size ** 0.8, t < 0 ? 255 : 50);
});

/** A colour as an element of the Uint32Array over the pixels of an ImageData (little-endian RGBA). */
export function pixel([red, green, blue]: Rgb, alpha = 255): number {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** A colour for `fillStyle` and `strokeStyle`. */
export function css([red, green, blue]: Rgb, alpha = 1): string {
  return `rgba(${red},${green},${blue},${alpha})`;
}

/** Relative luminance (WCAG 2.2). */
export function luminance(color: Rgb): number {
  const [red, green, blue] = color.map((channel) => {
    const value = channel / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Contrast of two colours (WCAG 2.2), 1 to 21. */
export function contrast(first: Rgb, second: Rgb): number {
  const [high, low] = [luminance(first), luminance(second)].sort((a, b) => b - a) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

export type ScaleKind = "log" | "linear" | "share" | "diverging";

/** Maps a value to 0 ... 1, and back. */
export interface Scale {
  readonly kind: ScaleKind;
  readonly low: number;
  readonly high: number;
  at(value: number): number;
  value(at: number): number;
}

/** Scale of a statistic. `range`: smallest and largest value; those of a log scale are above 0. */
export function scale(kind: ScaleKind, range: readonly [number, number]): Scale {
  let [low, high] = range;
  if (kind === "share") [low, high] = [0, Math.max(high, 1e-9) > 0.2 ? 1 : high];
  if (kind === "diverging") {
    high = Math.max(Math.abs(low), Math.abs(high)) || 1;
    low = -high;
  }
  if (kind === "log" && low > 0) {
    if (high / low < 1.01) [low, high] = [low / 2, high * 2];
    const first = Math.log(low);
    const length = Math.log(high) - first;
    const at = (value: number): number => (value > 0 ? clamp((Math.log(value) - first) / length) : 0);
    return { kind, low, high, at, value: (share) => Math.exp(first + share * length) };
  }
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const width = high - low;
  const linear = kind === "log" ? "linear" : kind;
  return {
    kind: linear,
    low,
    high,
    at: (value) => clamp((value - low) / width),
    value: (share) => low + share * width,
  };
}

const clamp = (share: number): number => Math.min(1, Math.max(0, share));

/** The colours of a kind of scale. */
export function table(kind: ScaleKind): readonly Rgb[] {
  return kind === "diverging" ? DIVERGING : SEQUENTIAL;
}

/** Colour of a share, 0 to 1, of a table. */
export function colorAt(colors: readonly Rgb[], share: number): Rgb {
  return colors[Math.round(share * (colors.length - 1))]!;
}
