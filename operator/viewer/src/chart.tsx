// Curves, drawn by uPlot. Colours come from the page's style, so that they follow the theme.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { number } from "./format";

export interface Line {
  label: string;
  x: number[];
  y: number[];
}

const HEIGHT = 190;

function around(value: number): [number, number] {
  const by = value === 0 ? 1 : Math.abs(value) / 2;
  return [value - by, value + by];
}

/** Values of several lines over all of their x. */
function joined(lines: Line[]): uPlot.AlignedData {
  const all = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const places = new Map(all.map((x, at) => [x, at]));
  const columns = lines.map((line) => {
    const column: (number | null)[] = new Array<number | null>(all.length).fill(null);
    line.x.forEach((x, at) => {
      const place = places.get(x);
      if (place !== undefined) column[place] = line.y[at] ?? null;
    });
    return column;
  });
  return [all, ...columns];
}

export const isDark = (): boolean => {
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

const colours = (): string[] =>
  isDark() ? ["#6cb6ff", "#f69d50", "#6bc46d", "#dcbdfb", "#ff938a", "#96d0ff"] : ["#0958b3", "#a64b00", "#1a6b2a", "#6f35b5", "#b3261e", "#00637a"];

/** The part of the x axis to which somebody has zoomed. */
function chosen(plot: uPlot): { min: number; max: number } | null {
  const { min, max } = plot.scales["x"] ?? {};
  const [first, last] = [plot.data[0][0], plot.data[0].at(-1)];
  if (min === undefined || max === undefined || first === undefined || last === undefined) return null;
  return min > first || max < last ? { min, max } : null;
}

/** One chart. It draws itself when it comes into sight: a run has fifty of them. */
export function Chart(props: { title: string; over: string; lines: Line[]; theme: string }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [isSeen, setSeen] = useState(false);
  const shape = props.lines.map((line) => line.label).join("\n");

  useEffect(() => {
    if (!place.current) return;
    const watcher = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) setSeen(true);
    }, { rootMargin: "300px" });
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, []);

  useEffect(() => {
    const element = place.current;
    if (!isSeen || !element) return;
    const [axis, grid] = isDark() ? ["#adbac7", "#373e47"] : ["#4a5258", "#dde1e5"];
    const colour = colours();
    const points = Math.max(...props.lines.map((line) => line.x.length), 0);
    const drawn = new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height: HEIGHT,
        legend: { show: props.lines.length > 1, live: false },
        cursor: { sync: { key: `runs-${props.over}` }, points: { size: 6 } },
        scales: {
          x: { time: false },
          // A constant has a scale around it, in place of one from 0 to 100.
          y: { range: (_, low, high) => (low === null || high === null ? [0, 1] : low === high ? around(low) : uPlot.rangeNum(low, high, 0.1, true)) },
        },
        axes: [
          { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid }, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
          { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid }, size: 62, values: (_, values) => values.map((value) => number(value)) },
        ],
        series: [
          {},
          ...props.lines.map((line, at) => ({
            label: line.label,
            stroke: colour[at % colour.length] ?? axis,
            width: 1.6,
            spanGaps: true,
            points: { show: points < 40, size: 5 },
          })),
        ],
        hooks: {
          setCursor: [
            (u) => {
              const at = u.cursor.idx;
              const told = element.parentElement?.querySelector(".told");
              if (!told) return;
              if (at === null || at === undefined) {
                told.textContent = "";
                return;
              }
              const values = props.lines.map((line, n) => {
                const value = u.data[n + 1]?.[at];
                return `${props.lines.length > 1 ? `${line.label} ` : ""}${number(value ?? null, 4)}`;
              });
              told.textContent = `${props.over} ${u.data[0]?.[at] ?? ""}: ${values.join(", ")}`;
            },
          ],
        },
      },
      joined(props.lines),
      element,
    );
    plot.current = drawn;
    const resized = new ResizeObserver(() => {
      if (element.clientWidth > 0) drawn.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    resized.observe(element);
    return () => {
      resized.disconnect();
      drawn.destroy();
      plot.current = null;
    };
    // New values are given to the same plot below.
  }, [isSeen, shape, props.theme]);

  useEffect(() => {
    const drawn = plot.current;
    if (!drawn) return;
    // A part that was chosen with the pointer stays chosen while the run adds values.
    const part = chosen(drawn);
    drawn.setData(joined(props.lines), part === null);
    if (part) drawn.setScale("x", part);
  }, [props.lines]);

  const last = props.lines.map((line) => {
    const value = line.y.at(-1);
    return `${props.lines.length > 1 ? `${line.label}: ` : ""}last ${number(value ?? null)}`;
  });
  return (
    <figure class="chart">
      <figcaption>
        <span class="title">{props.title}</span> <span class="quiet">{last.join(", ")}</span>
      </figcaption>
      <div ref={place} class="plot" role="img" aria-label={`${props.title} over ${props.over}s. ${last.join(", ")}.`} />
      <p class="told quiet" aria-hidden="true" />
    </figure>
  );
}
