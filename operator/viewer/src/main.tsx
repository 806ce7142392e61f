// The page: its frame, its keys, and the view of the address.

import { render, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { follow, isBundle, runs as loadRuns } from "./data";
import { parse, scopeOf, scopeTitle, to, type Route } from "./router";
import "./style.css";
import { Compare } from "./views/compare";
import { Episode } from "./views/episode";
import { Group } from "./views/group";
import { Lineage } from "./views/lineage";
import { Overview } from "./views/overview";
import { Scope } from "./views/scope";
import { Search } from "./views/search";
import { Task } from "./views/task";
import type { RunsView } from "./wire";

const KEYS: [string, string][] = [
  ["j, k", "next and previous row or turn"],
  ["Enter", "open the row"],
  ["u", "up: from the episode to its group, from there to the iteration, to the run"],
  ["o", "the run"],
  ["w", "versions of the weights"],
  ["/", "search"],
  ["t", "tokens of an episode"],
  ["d", "dark or light"],
  ["?", "this list"],
];

/** A run that works changes several times a second; views load again at most once in this time. */
const SETTLE = 400;

function runOf(route: Route): number {
  return "run" in route ? route.run : 0;
}

function above(route: Route): string {
  switch (route.view) {
    case "episode": {
      const group = /__g(\d+)__i/.exec(route.path);
      return group ? to.group(route.run, scopeOf(route.path), Number(group[1])) : to.scope(route.run, scopeOf(route.path));
    }
    case "group":
      return to.scope(route.run, route.scope);
    default:
      return to.overview(runOf(route));
  }
}

function titleOf(route: Route, runs: RunsView): string {
  const run = runs.runs[runOf(route)] ?? "";
  switch (route.view) {
    case "scope":
      return `${scopeTitle(route.scope)} · ${run}`;
    case "group":
      return `group ${route.group}, ${scopeTitle(route.scope)} · ${run}`;
    case "episode":
      return `${route.path.split("/").at(-1)} · ${run}`;
    case "task":
      return `${route.instance} · ${run}`;
    case "lineage":
      return `weights · ${run}`;
    case "search":
      return `search · ${run}`;
    case "compare":
      return "runs beside each other";
    default:
      return run || "GRPO runs";
  }
}

/** Moves the focus to the next or previous row of the view. */
function step(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("a.row, article.turn h3")];
  if (rows.length === 0) return;
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by));
  const row = rows[next];
  if (!row) return;
  if (!(row instanceof HTMLAnchorElement)) row.tabIndex = -1;
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "center" });
}

function storedTheme(): string {
  try {
    return localStorage.getItem("theme") ?? "";
  } catch {
    return "";
  }
}

function App(): JSX.Element {
  const [route, setRoute] = useState(() => parse(location.hash));
  const [runs, setRuns] = useState<RunsView | null>(null);
  const [states, setStates] = useState<Record<number, { live: boolean; problem: string | null }>>({});
  const [isLost, setLost] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const [changes, setChanges] = useState<Record<number, number>>({});
  const [tokens, setTokens] = useState(false);
  const [help, setHelp] = useState(false);
  const [theme, setTheme] = useState(storedTheme);
  const searchBox = useRef<HTMLInputElement>(null);
  const main = useRef<HTMLElement>(null);

  useEffect(() => {
    loadRuns().then(setRuns, (reason: unknown) => setError(reason instanceof Error ? reason.message : String(reason)));
    const due = new Map<number, number>();
    follow((change) => {
      setLost(false);
      setStates((before) => ({ ...before, [change.run]: { live: change.live, problem: change.problem?.message ?? null } }));
      if (due.has(change.run)) return;
      const timer = window.setTimeout(() => {
        due.delete(change.run);
        setChanges((before) => ({ ...before, [change.run]: (before[change.run] ?? 0) + 1 }));
      }, SETTLE);
      due.set(change.run, timer);
    }, () => setLost(true));
    // The browser keeps the place of a view that one comes back to.
    const routed = () => {
      setRoute(parse(location.hash));
      main.current?.focus({ preventScroll: true });
    };
    window.addEventListener("hashchange", routed);
    return () => window.removeEventListener("hashchange", routed);
  }, []);

  useEffect(() => {
    if (theme) document.documentElement.dataset["theme"] = theme;
    else delete document.documentElement.dataset["theme"];
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // A page from a folder may have no storage.
    }
  }, [theme]);

  useEffect(() => {
    document.title = runs ? titleOf(route, runs) : "GRPO runs";
  }, [route, runs]);

  const turnTheme = () => {
    const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    setTheme(dark ? "light" : "dark");
  };

  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") {
        setHelp(false);
        target.blur();
        return;
      }
      // Of a chosen radio button only the arrow keys are its own.
      const isRadio = target instanceof HTMLInputElement && target.type === "radio";
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) && !isRadio) return;
      const actions: Record<string, () => void> = {
        j: () => step(1),
        k: () => step(-1),
        u: () => (location.hash = above(route)),
        o: () => (location.hash = to.overview(runOf(route))),
        w: () => (location.hash = to.lineage(runOf(route))),
        "/": () => searchBox.current?.focus(),
        t: () => setTokens((shown) => !shown),
        d: turnTheme,
        "?": () => setHelp((shown) => !shown),
      };
      const action = actions[event.key];
      if (action) {
        event.preventDefault();
        action();
      }
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  });

  if (error !== null) return <main><p class="problem" role="alert">{error}</p></main>;
  if (runs === null) return <main><p role="status">Loading…</p></main>;
  const run = runOf(route);
  const state = states[run];
  const problem = isLost ? "The viewer does not answer: `kubectl grpo ui` has ended. This page stays as it is." : state?.problem ?? null;
  const isLive = !isLost && (state?.live ?? runs.live);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>To the content</a>
      <header class="top">
        <nav aria-label="Run">
          {runs.runs.length > 1 ? (
            <label>
              run{" "}
              <select value={run} onChange={(event) => (location.hash = to.overview(Number(event.currentTarget.value)))}>
                {runs.runs.map((name, number) => <option key={number} value={number}>{name}</option>)}
              </select>
            </label>
          ) : (
            <a href={to.overview(0)}><strong>{runs.runs[0] ?? "run"}</strong></a>
          )}
          {runs.runs.length > 1 && <a href={to.overview(run)}>overview</a>}
          <a href={to.lineage(run)}>weights</a>
          {runs.runs.length > 1 && <a href={to.compare()}>compare</a>}
          {route.view !== "overview" && route.view !== "compare" && <a href={above(route)}>up</a>}
        </nav>
        <div class="tools">
          {isLive && <span class="live" title="New records appear by themselves">live</span>}
          {!isBundle && (
            <form
              role="search"
              onSubmit={(event) => {
                event.preventDefault();
                location.hash = to.search(run, searchBox.current?.value ?? "");
              }}
            >
              <input ref={searchBox} type="search" name="q" placeholder="Search  (/)" aria-label="Search episodes" defaultValue={route.view === "search" ? route.words : ""} />
            </form>
          )}
          {route.view === "episode" && (
            <button type="button" aria-pressed={tokens} onClick={() => setTokens(!tokens)}>tokens</button>
          )}
          <button type="button" onClick={turnTheme}>theme</button>
          <button type="button" aria-expanded={help} onClick={() => setHelp(!help)}>keys</button>
        </div>
      </header>
      {problem !== null && <p class="problem" role="alert">{problem}</p>}
      {help && (
        <section class="help" aria-label="Keys">
          <h2>Keys</h2>
          <dl class="facts">{KEYS.map(([key, words]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{words}</dd></div>)}</dl>
        </section>
      )}
      <main id="main" ref={main} tabIndex={-1}>
        <View route={route} runs={runs} changes={changes} theme={theme} tokens={tokens} />
      </main>
    </>
  );
}

function View(props: { route: Route; runs: RunsView; changes: Record<number, number>; theme: string; tokens: boolean }): JSX.Element {
  const { route, theme } = props;
  const change = props.changes[runOf(route)] ?? 0;
  const ofAll = Object.values(props.changes).reduce((a, b) => a + b, 0);
  switch (route.view) {
    case "overview":
      return <Overview run={route.run} change={change} theme={theme} />;
    case "scope":
      return <Scope run={route.run} scope={route.scope} change={change} />;
    case "group":
      return <Group run={route.run} scope={route.scope} group={route.group} change={change} />;
    case "episode":
      return <Episode run={route.run} path={route.path} turn={route.turn} change={change} tokens={props.tokens} />;
    case "task":
      return <Task runs={props.runs} run={route.run} instance={route.instance} change={ofAll} theme={theme} />;
    case "lineage":
      return <Lineage run={route.run} change={change} />;
    case "search":
      return <Search run={route.run} words={route.words} change={change} />;
    case "compare":
      return <Compare runs={props.runs} change={ofAll} theme={theme} />;
    default:
      return <p class="problem">There is no such view. <a href={to.overview(0)}>To the run</a></p>;
  }
}

const place = document.getElementById("app");
if (place) {
  place.textContent = "";
  render(<App />, place);
}
