// One task over the whole run, and over the other runs of the viewer: when it was tried, and how often it was resolved.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { Chart, type Line } from "../chart";
import { number, percent } from "../format";
import { Outcome, Shown, Table, useView } from "../parts";
import { to } from "../router";
import type { RunsView, TaskView } from "../wire";

/** The episodes of the task in a run. */
interface Tried {
  run: number;
  name: string;
  view: TaskView;
}

export function Task(props: { runs: RunsView; run: number; instance: string; change: number; theme: string }): JSX.Element {
  const { runs } = props.runs;
  // The number of runs of a viewer never changes, so each has its place among the hooks.
  const loaded = runs.map((_, run) => useView<TaskView>(`${run}/task/${props.instance}`, props.change));
  const tried = useMemo(() => {
    const all = loaded.map((one, run) => ({ run, name: runs[run] ?? "", view: one.value }));
    // Other runs may not have the task; a bundle then has no view of it.
    return all.flatMap(({ view, ...of }): Tried[] => (view && (of.run === props.run || view.scopes.length > 0) ? [{ ...of, view }] : []));
  }, [props.run, ...loaded.map((one) => one.value)]);
  const own = loaded[props.run];
  if (!own) return <p class="problem" role="alert">This viewer shows no run of this number.</p>;
  return <Shown of={own}>{(view) => <Runs tried={tried} instance={view.instance} theme={props.theme} />}</Shown>;
}

function Runs(props: { tried: Tried[]; instance: string; theme: string }): JSX.Element {
  const { tried } = props;
  const isOne = tried.length <= 1;
  const lines = useMemo(() => tried.flatMap((one) => rates(one.view, isOne ? "rollouts" : one.name)), [tried]);
  return (
    <>
      <h1>{props.instance}</h1>
      {lines.length > 0 && <Chart title="resolved episodes of this task" over="iteration" lines={lines} theme={props.theme} />}
      {tried.map((one) => (
        <section key={one.run}>
          {!isOne && <h2>{one.name}</h2>}
          <Scopes view={one.view} run={one.run} caption={isOne ? "Where this task was tried" : `Where ${one.name} tried this task`} />
        </section>
      ))}
    </>
  );
}

function Scopes(props: { view: TaskView; run: number; caption: string }): JSX.Element {
  const { view, run } = props;
  return (
    <Table
      caption={props.caption}
      rows={view.scopes}
      link={(scope) => to.group(run, scope.scope, scope.group)}
      empty="No episode of this task has a verdict."
      columns={[
        { name: "part of the run", cell: (scope) => scope.title },
        {
          name: "resolved",
          right: true,
          cell: (scope) => percent(scope.episodes.filter((one) => one.outcome === "Resolved").length, scope.episodes.length),
          by: (scope) => scope.episodes.filter((one) => one.outcome === "Resolved").length / Math.max(1, scope.episodes.length),
        },
        {
          name: "episodes",
          cell: (scope) => (
            <span class="samples">
              {scope.episodes.map((one) => (
                <a key={one.path} href={to.episode(run, one.path)} title={`reward ${number(one.reward)}`}>
                  <Outcome line={one} />
                </a>
              ))}
            </span>
          ),
        },
      ]}
    />
  );
}

function rates(view: TaskView, label: string): Line[] {
  const line: Line = { label, x: [], y: [] };
  for (const scope of view.scopes) {
    const iteration = /iter-0*(\d+)$/.exec(scope.scope);
    if (!iteration || scope.episodes.length === 0) continue;
    line.x.push(Number(iteration[1]));
    line.y.push(scope.episodes.filter((one) => one.outcome === "Resolved").length / scope.episodes.length);
  }
  return line.x.length > 1 ? [line] : [];
}
