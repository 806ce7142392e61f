// Runs beside each other: the same curve of all of them in one chart.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { Chart, type Line } from "../chart";
import { percent } from "../format";
import { Shown, Table, useView } from "../parts";
import { to } from "../router";
import type { EvaluationLine, RunView, RunsView } from "../wire";
import { charts, titleOf } from "./overview";

export function Compare(props: { runs: RunsView; change: number; theme: string }): JSX.Element {
  // The number of runs of a viewer never changes, so each has its place among the hooks.
  const loaded = props.runs.runs.map((_, number) => useView<RunView>(`${number}/run`, props.change));
  const missing = loaded.find((one) => one.value === null);
  if (missing) return <Shown of={missing}>{() => null}</Shown>;
  return <Beside runs={loaded.flatMap((one) => (one.value ? [one.value] : []))} names={props.runs.runs} theme={props.theme} />;
}

function Beside(props: { runs: RunView[]; names: string[]; theme: string }): JSX.Element {
  const { runs, names } = props;
  const drawn = useMemo(() => {
    const all = new Map<string, { name: string; over: string; lines: Line[] }>();
    runs.forEach((run, number) => {
      for (const chart of charts(run.curves)) {
        const key = `${chart.over} ${chart.name}`;
        const one = all.get(key) ?? { name: chart.name, over: chart.over, lines: [] };
        const several = chart.lines.length > 1;
        one.lines.push(...chart.lines.map((line) => ({ ...line, label: several ? `${names[number]}, ${line.label}` : names[number] ?? "" })));
        all.set(key, one);
      }
    });
    return [...all.values()];
  }, [runs]);
  const evaluations = runs.flatMap((run, number) => run.evaluations.map((line) => ({ line, number })));
  return (
    <>
      <h1>Runs beside each other</h1>
      <div class="charts">
        {drawn.map((chart) => (
          <Chart key={`${chart.over} ${chart.name}`} title={titleOf(chart.name)} over={chart.over} lines={chart.lines} theme={props.theme} />
        ))}
      </div>
      <h2>Evaluations</h2>
      <Table<{ line: EvaluationLine; number: number }>
        caption="Evaluations of all runs"
        rows={evaluations}
        link={(one) => to.scope(one.number, one.line.scope)}
        empty="No set was evaluated."
        columns={[
          { name: "run", cell: (one) => names[one.number], by: (one) => one.number },
          { name: "set", cell: (one) => one.line.set, by: (one) => one.line.set },
          { name: "weights", cell: (one) => one.line.weights, by: (one) => one.line.step ?? -1 },
          { name: "resolved", right: true, cell: (one) => percent(one.line.resolved, one.line.verdicts), by: (one) => one.line.resolved / Math.max(1, one.line.verdicts) },
          { name: "verdicts", right: true, cell: (one) => one.line.verdicts, by: (one) => one.line.verdicts },
        ]}
      />
    </>
  );
}
