// The run as a whole: how it goes, its curves, iterations and evaluations.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Chart, type Line } from "../chart";
import { duration, number, percent, plural, time, whole } from "../format";
import { Facts, Lane, LaneLegend, Shown, Table, useView } from "../parts";
import { to } from "../router";
import type { Curve, IterationLine, RunView } from "../wire";

/** The curves that are shown first, with the words of their titles. */
const FIRST: [string, string][] = [
  ["resolved_rate", "resolved episodes"],
  ["reward_mean", "mean reward"],
  ["loss", "loss"],
  ["entropy", "entropy of the policy, nats"],
  ["gradient_norm", "gradient norm"],
  ["kl", "KL from the reference"],
  ["clip_fraction", "clipped tokens, share"],
  ["logprob_gap_max", "largest gap of logprobs, engine and trainer"],
  ["ratio_deviation", "mean |ratio − 1|"],
  ["staleness_max", "staleness, steps"],
  ["tokens_mean", "tokens of an episode"],
  ["turns_mean", "turns of an episode"],
  ["voids", "void episodes"],
  ["step_seconds", "seconds of a step"],
];

export const titleOf = (name: string): string => FIRST.find(([known]) => known === name)?.[1] ?? name.replaceAll("_", " ");

/** Curves of one name: those of iterations, or of steps; and evaluation sets beside iterations. */
export function charts(curves: Curve[]): { name: string; over: string; lines: Line[] }[] {
  const found = new Map<string, { name: string; over: string; lines: Line[] }>();
  for (const curve of curves) {
    const isSet = curve.of !== "iteration" && curve.of !== "step";
    const over = isSet ? "iteration" : curve.of;
    const key = `${over} ${curve.name}`;
    const chart = found.get(key) ?? { name: curve.name, over, lines: [] };
    chart.lines.push({ label: isSet ? curve.of : curve.of === "step" ? "training" : "rollouts", x: curve.x, y: curve.y });
    found.set(key, chart);
  }
  const place = (name: string) => {
    const at = FIRST.findIndex(([known]) => known === name);
    return at < 0 ? FIRST.length : at;
  };
  return [...found.values()].sort((a, b) => place(a.name) - place(b.name) || a.name.localeCompare(b.name));
}

const STAGES = ["rollout", "train", "sync"];

/** Iterations whose times are drawn. */
const DRAWN = 40;

/** Milliseconds of an iteration's stages that have ended. Its weights are synced when their version is promoted. */
function stagesOf(line: IterationLine, promoted: number | undefined): [string, number][] {
  const between = (from: number | null, to: number | null | undefined): number => (from && to ? Math.max(0, 1000 * (to - from)) : 0);
  return [
    ["rollout", between(line.began, line.batch)],
    ["train", between(line.batch, line.stepped)],
    ["sync", between(line.stepped, promoted)],
  ];
}

/** When the weights of each iteration were promoted. */
function promotions(run: RunView): Map<number, number> {
  const found = new Map<number, number>();
  for (const { fromIteration, promoted } of run.versions) {
    if (fromIteration === null || promoted === null) continue;
    // A later lineage has made the step again.
    found.set(fromIteration, Math.max(promoted, found.get(fromIteration) ?? 0));
  }
  return found;
}

/** The time of the newest iterations by stage. */
function Times(props: { run: RunView; number: number }): JSX.Element {
  const promoted = promotions(props.run);
  const newest = props.run.iterations.slice(-DRAWN).reverse();
  const all = newest.map((line) => {
    const parts = stagesOf(line, promoted.get(line.iteration));
    return { line, parts, whole: parts.reduce((sum, [, millis]) => sum + millis, 0) };
  });
  const longest = Math.max(1, ...all.map((one) => one.whole));
  return (
    <>
      <p class="quiet">
        The newest iterations: rollout until the batch, training step, sync until the new weights are promoted. Rollouts of the next
        iteration may begin earlier.
      </p>
      <LaneLegend names={STAGES} />
      <ul class="lanes">
        {all.map(({ line, parts, whole }) => (
          <li key={line.iteration}>
            <a href={to.scope(props.number, line.scope)}>iteration {line.iteration}</a>
            <Lane parts={parts} longest={longest} />
            <span class="quiet">{duration(whole)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function stateOf(run: RunView): string {
  if (run.end === null) return run.iterations.length === 0 && run.evaluations.length === 0 ? "has not begun" : "not finished";
  return run.end.succeeded ? "Succeeded" : `Failed: ${run.end.reason ?? "no reason"}`;
}

export function Overview(props: { run: number; change: number; theme: string }): JSX.Element {
  const loaded = useView<RunView>(`${props.run}/run`, props.change);
  return <Shown of={loaded}>{(run) => <Run run={run} number={props.run} theme={props.theme} />}</Shown>;
}

function Run(props: { run: RunView; number: number; theme: string }): JSX.Element {
  const { run } = props;
  const [all, setAll] = useState(false);
  const drawn = useMemo(() => charts(run.curves), [run]);
  const shown = all ? drawn : drawn.filter((chart) => FIRST.some(([name]) => name === chart.name));
  const verdicts = run.iterations.reduce((sum, line) => sum + line.verdicts, 0);
  const voids = run.voids.map((one) => `${one.name} ${whole(one.count)}`).join(", ");
  return (
    <>
      <h1>{run.name || "Run"}</h1>
      {run.reading && <p role="status" class="quiet">Reading the journal: {whole(run.sequence)} entries so far.</p>}
      <Facts
        of={[
          ["state", stateOf(run)],
          ["namespace", run.namespace || "–"],
          ["agent", run.agent || "–"],
          ["tasks", whole(run.tasks)],
          ["iterations", whole(run.iterations.length)],
          ["episodes with a verdict", whole(verdicts)],
          ["void attempts", voids || "none"],
          ["drivers so far", whole(run.drivers)],
          ["began", time(run.began)],
          ["last entry", `${time(run.last)}, after ${duration(1000 * (run.last - run.began))}`],
        ]}
      />
      {run.end?.message && <p class="problem">{run.end.message}</p>}
      {run.damaged.map((file) => <p key={file} class="problem">Numbers are missing: {file}</p>)}
      <h2 id="curves">Curves</h2>
      {drawn.length === 0 ? (
        <p class="quiet">There are none until the first iteration has its batch.</p>
      ) : (
        <>
          <div class="charts">
            {shown.map((chart) => (
              <Chart key={`${chart.over} ${chart.name}`} title={titleOf(chart.name)} over={chart.over} lines={chart.lines} theme={props.theme} />
            ))}
          </div>
          {shown.length < drawn.length && (
            <button type="button" onClick={() => setAll(true)}>Show all {plural(drawn.length, "curve")}</button>
          )}
        </>
      )}
      <h2 id="iterations">Iterations</h2>
      <Table
        caption="Iterations, the newest first"
        rows={[...run.iterations].reverse()}
        link={(line) => to.scope(props.number, line.scope)}
        empty="No iteration has begun."
        columns={[
          { name: "iteration", cell: (line) => line.iteration, by: (line) => line.iteration },
          { name: "sampled by", cell: (line) => line.weights },
          { name: "resolved", right: true, cell: (line) => percent(line.resolved, line.verdicts), by: (line) => line.resolved / Math.max(1, line.verdicts) },
          { name: "mean reward", right: true, cell: (line) => number(line.rewardMean), by: (line) => line.rewardMean ?? -Infinity },
          { name: "verdicts", right: true, cell: (line) => line.verdicts, by: (line) => line.verdicts },
          { name: "void attempts", right: true, cell: (line) => line.voids, by: (line) => line.voids },
          { name: "groups", right: true, cell: (line) => line.groups, by: (line) => line.groups },
          { name: "not in the batch", right: true, cell: (line) => line.dropped, by: (line) => line.dropped },
          { name: "rollout", right: true, cell: (line) => (line.batch ? duration(1000 * (line.batch - line.began)) : "…"), by: (line) => (line.batch ?? line.began) - line.began },
          { name: "step", right: true, cell: (line) => (line.stepped && line.batch ? duration(1000 * (line.stepped - line.batch)) : "…"), by: (line) => (line.stepped ?? 0) - (line.batch ?? 0) },
        ]}
      />
      {run.iterations.length > 0 && (
        <>
          <h2 id="times">Times</h2>
          <Times run={run} number={props.number} />
        </>
      )}
      <h2 id="evaluations">Evaluations</h2>
      <Table
        caption="Evaluations of fixed sets"
        rows={run.evaluations}
        link={(line) => to.scope(props.number, line.scope)}
        empty="No set was evaluated."
        columns={[
          { name: "set", cell: (line) => line.set, by: (line) => line.set },
          { name: "weights", cell: (line) => line.weights, by: (line) => line.step ?? -1 },
          { name: "resolved", right: true, cell: (line) => percent(line.resolved, line.verdicts), by: (line) => line.resolved / Math.max(1, line.verdicts) },
          { name: "verdicts", right: true, cell: (line) => line.verdicts, by: (line) => line.verdicts },
          { name: "void attempts", right: true, cell: (line) => line.voids, by: (line) => line.voids },
          { name: "state", cell: (line) => (line.done ? "complete" : "not complete") },
        ]}
      />
    </>
  );
}
