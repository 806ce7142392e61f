// One task over the whole run: when it was tried, and how often it was resolved.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { Chart, type Line } from "../chart";
import { number, percent } from "../format";
import { Outcome, Shown, Table, useView } from "../parts";
import { to } from "../router";
import type { TaskView } from "../wire";

export function Task(props: { run: number; instance: string; change: number; theme: string }): JSX.Element {
  const loaded = useView<TaskView>(`${props.run}/task/${props.instance}`, props.change);
  return <Shown of={loaded}>{(view) => <Scopes view={view} run={props.run} theme={props.theme} />}</Shown>;
}

function Scopes(props: { view: TaskView; run: number; theme: string }): JSX.Element {
  const { view, run } = props;
  const lines = useMemo(() => rates(view), [view]);
  return (
    <>
      <h1>{view.instance}</h1>
      {lines.length > 0 && <Chart title="resolved episodes of this task" over="iteration" lines={lines} theme={props.theme} />}
      <Table
        caption="Where this task was tried"
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
    </>
  );
}

function rates(view: TaskView): Line[] {
  const line: Line = { label: "rollouts", x: [], y: [] };
  for (const scope of view.scopes) {
    const iteration = /iter-0*(\d+)$/.exec(scope.scope);
    if (!iteration || scope.episodes.length === 0) continue;
    line.x.push(Number(iteration[1]));
    line.y.push(scope.episodes.filter((one) => one.outcome === "Resolved").length / scope.episodes.length);
  }
  return line.x.length > 1 ? [line] : [];
}
