// Parts that several views use.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ViewError, download, isBundle, save, view } from "./data";
import { bytes, duration, number } from "./format";
import { to } from "./router";
import type { EpisodeLine, Text } from "./wire";

/** What a view has loaded: nothing yet, a value, or an error. A new value replaces the old one without a gap. */
export type Loaded<T> = { value: T | null; error: string | null };

/**
 * Loads a view, and loads it again when `change` changes. One request at a time: a view that takes longer than the run
 * needs for its next change is still shown, and then loaded once more. A value stays until the next one is there.
 */
export function useView<T>(key: string | null, change = 0): Loaded<T> {
  const [loaded, set] = useState<{ key: string | null } & Loaded<T>>({ key: null, value: null, error: null });
  const wanted = useRef<{ key: string | null; change: number; busy: boolean }>({ key: null, change: 0, busy: false });
  useEffect(() => {
    const state = wanted.current;
    if (state.key !== key) wanted.current = { key, change, busy: false };
    else state.change = change;
    const mine = wanted.current;
    if (key === null || mine.busy) return;
    const load = () => {
      const of = mine.change;
      mine.busy = true;
      const done = (value: T | null, error: string | null) => {
        mine.busy = false;
        // Another view is shown now.
        if (wanted.current !== mine) return;
        set((before) => ({ key, value: value ?? (before.key === key ? before.value : null), error }));
        if (mine.change !== of) load();
      };
      view<T>(key).then(
        (value) => done(value, null),
        (error: unknown) => done(null, error instanceof ViewError ? error.message : String(error)),
      );
    };
    load();
  }, [key, change]);
  // Nothing is set after the view has gone.
  useEffect(() => () => {
    wanted.current = { key: null, change: 0, busy: false };
  }, []);
  return loaded.key === key ? loaded : { value: null, error: null };
}

/** The view's content when it is there; before that a line that says so, or the error. */
export function Shown<T>(props: { of: Loaded<T>; children: (value: T) => ComponentChildren }): JSX.Element {
  const { value, error } = props.of;
  return (
    <>
      {error !== null && <p class="problem" role="alert">{error}</p>}
      {value !== null && props.children(value)}
      {value === null && error === null && <p class="quiet" role="status">Loading…</p>}
    </>
  );
}

export function Outcome(props: { line: Pick<EpisodeLine, "outcome"> & Partial<EpisodeLine> }): JSX.Element {
  const { outcome, voidReason, message } = props.line;
  const words = voidReason ? `Void: ${voidReason}` : outcome;
  return <span class={`outcome ${outcome.toLowerCase()}`} title={message ?? undefined}>{words}</span>;
}

/** A text as it is: never markup. */
export function Block(props: { text: Text; class?: string; label: string }): JSX.Element {
  const { text, omitted } = props.text;
  return (
    <>
      <pre class={props.class} tabIndex={0} role="region" aria-label={props.label}>{text}</pre>
      {omitted > 0 && <p class="quiet">{bytes(omitted)} more are in the store.</p>}
    </>
  );
}

/** A list of names and values. */
export function Facts(props: { of: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {props.of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Time of an episode or turn, as parts of a bar. `longest`: the milliseconds of the whole width. */
export function Lane(props: { parts: [string, number][]; longest: number }): JSX.Element {
  const shown = props.parts.filter(([, millis]) => millis > 0);
  const words = shown.map(([name, millis]) => `${name} ${duration(millis)}`).join(", ");
  return (
    <div class="lane" role="img" aria-label={words || "no time"} title={words}>
      {shown.map(([name, millis]) => (
        <span key={name} class={`part ${name}`} style={{ width: `${(100 * millis) / Math.max(1, props.longest)}%` }} />
      ))}
    </div>
  );
}

export function LaneLegend(props: { names: string[] }): JSX.Element {
  return (
    <p class="legend" aria-hidden="true">
      {props.names.map((name) => (
        <span key={name}><span class={`part ${name}`} /> {name}</span>
      ))}
    </p>
  );
}

export interface Column<Row> {
  name: string;
  /** Numbers stand at the right. */
  right?: boolean;
  cell: (row: Row) => ComponentChildren;
  /** The value by which rows are sorted; without it the column does not sort. */
  by?: (row: Row) => number | string;
}

const PAGE = 100;

/** A table that sorts by its columns and shows a hundred rows at a time. Rows are links of the keys j and k. */
export function Table<Row>(props: {
  caption: string;
  rows: Row[];
  columns: Column<Row>[];
  link?: (row: Row) => string;
  empty: string;
}): JSX.Element {
  const [sort, setSort] = useState<{ column: number; down: boolean } | null>(null);
  const [most, setMost] = useState(PAGE);
  if (props.rows.length === 0) return <p class="quiet">{props.empty}</p>;
  let rows = props.rows;
  const by = sort === null ? undefined : props.columns[sort.column]?.by;
  if (sort !== null && by !== undefined) {
    const order = (a: Row, b: Row) => {
      const [x, y] = [by(a), by(b)];
      return x < y ? -1 : x > y ? 1 : 0;
    };
    rows = [...rows].sort((a, b) => (sort.down ? order(b, a) : order(a, b)));
  }
  const turn = (column: number) => setSort({ column, down: sort?.column === column ? !sort.down : true });
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={props.caption}>
      <table>
        <caption>{props.caption}</caption>
        <thead>
          <tr>
            {props.columns.map((column, at) => (
              <th
                key={column.name}
                scope="col"
                class={column.right ? "right" : undefined}
                aria-sort={sort?.column === at ? (sort.down ? "descending" : "ascending") : undefined}
              >
                {column.by ? <button type="button" onClick={() => turn(at)}>{column.name}</button> : column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, most).map((row, at) => (
            <tr key={props.link?.(row) ?? at}>
              {props.columns.map((column, number) => (
                <td key={column.name} class={column.right ? "right" : undefined}>
                  {number === 0 && props.link ? <a class="row" href={props.link(row)}>{column.cell(row)}</a> : column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > most && (
        <button type="button" onClick={() => setMost(most + 10 * PAGE)}>
          Show more ({rows.length - most} rows)
        </button>
      )}
    </div>
  );
}

/** The columns of episodes. */
export function episodeColumns(run: number): Column<EpisodeLine>[] {
  return [
    { name: "episode", cell: (line) => line.name, by: (line) => line.name },
    { name: "outcome", cell: (line) => <Outcome line={line} />, by: (line) => line.outcome },
    { name: "reward", right: true, cell: (line) => number(line.reward), by: (line) => line.reward ?? -Infinity },
    { name: "advantage", right: true, cell: (line) => number(line.advantage), by: (line) => line.advantage ?? -Infinity },
    { name: "ended by", cell: (line) => line.end, by: (line) => line.end },
    { name: "turns", right: true, cell: (line) => line.turns, by: (line) => line.turns },
    { name: "tokens", right: true, cell: (line) => line.tokens, by: (line) => line.tokens },
    { name: "sampled", right: true, cell: (line) => line.sampledTokens, by: (line) => line.sampledTokens },
    { name: "patch", right: true, cell: (line) => (line.patchBytes > 0 ? bytes(line.patchBytes) : "–"), by: (line) => line.patchBytes },
    {
      name: "marks",
      cell: (line) => (
        <>
          {line.samePatch > 0 && <span class="mark" title={`${line.samePatch} other samples have the same patch`}>same patch</span>}
          {line.reusedFrom && <a class="mark" href={to.episode(run, line.reusedFrom)}>reused verdict</a>}
          {line.truncated && <span class="mark">cut</span>}
          {line.untrainable && <span class="mark" title="Answered by a server that speaks only text: no batch takes it">not for training</span>}
          {line.formatErrors > 0 && <span class="mark">{line.formatErrors} format errors</span>}
        </>
      ),
    },
  ];
}

export const LANES = ["wait", "agent", "grade"];

export const laneOf = (line: EpisodeLine): [string, number][] => [
  ["wait", line.waitedMillis],
  ["agent", line.agentMillis],
  ["grade", line.gradeMillis],
];

export const laneLength = (line: EpisodeLine): number => line.waitedMillis + line.agentMillis + line.gradeMillis;

/** Links that save an episode or a scope in other projects' formats. A bundle has no server that makes them. */
export function Downloads(props: { run: number; files: [string, string][] }): JSX.Element | null {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  if (isBundle) return null;
  const begin = async (file: string) => {
    setBusy(true);
    setError(null);
    try {
      await save(props.run, file);
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    }
    setBusy(false);
  };
  const clicked = (event: MouseEvent, file: string) => {
    // The browser opens it in a tab or a window.
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (!isBusy) void begin(file);
  };
  return (
    <>
      <p class="quiet">
        Save as{" "}
        {props.files.map(([name, file], at) => (
          <span key={file}>
            {at > 0 && " or "}
            <a href={download(props.run, file)} download onClick={(event) => clicked(event, file)}>{name}</a>
          </span>
        ))}
        .{isBusy && <span role="status"> The viewer makes the file…</span>}
      </p>
      {error !== null && <p class="problem" role="alert">The file was not saved: {error}</p>}
    </>
  );
}
