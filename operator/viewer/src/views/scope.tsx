// An iteration or an evaluation: its groups, its episodes, their times, and what became void.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { duration, number, percent, plural, time, whole } from "../format";
import { Downloads, Facts, LANES, Lane, LaneLegend, Shown, Table, episodeColumns, laneLength, laneOf, useView } from "../parts";
import { to } from "../router";
import type { EpisodeLine, GroupLine, ScopeView } from "../wire";

export function Scope(props: { run: number; scope: string; change: number }): JSX.Element {
  const loaded = useView<ScopeView>(`${props.run}/scope/${props.scope}`, props.change);
  return <Shown of={loaded}>{(view) => <Groups view={view} run={props.run} />}</Shown>;
}

const DROPPED: Record<string, string> = {
  TooFewValid: "fewer than two valid episodes",
  NoSignal: "all rewards are equal",
  Surplus: "the batch was full",
};

function Groups(props: { view: ScopeView; run: number }): JSX.Element {
  const { view, run } = props;
  const [outcome, setOutcome] = useState("");
  const [marked, setMarked] = useState(false);
  const all = useMemo(() => view.groups.flatMap((group) => group.episodes), [view]);
  const episodes = all.filter(
    (line) => (outcome === "" || line.outcome === outcome) && (!marked || line.samePatch > 0 || line.truncated || line.formatErrors > 0),
  );
  const verdicts = all.filter((line) => line.outcome === "Resolved" || line.outcome === "Unresolved");
  const resolved = all.filter((line) => line.outcome === "Resolved").length;
  const longest = Math.max(1, ...episodes.map(laneLength));
  const slowest = [...episodes].sort((a, b) => laneLength(b) - laneLength(a)).slice(0, 40);
  const count = (name: string) => all.filter((line) => line.outcome === name).length;
  return (
    <>
      <h1>{view.title}</h1>
      {view.cut && <p class="problem">Only the first {whole(all.length)} episodes are shown.</p>}
      <Facts
        of={[
          ["groups", whole(view.groups.length)],
          ["episodes", whole(all.length)],
          ["resolved", percent(resolved, verdicts.length)],
          ["void attempts", whole(view.voids.length)],
          ["sampled tokens", whole(all.reduce((sum, line) => sum + line.sampledTokens, 0))],
        ]}
      />
      <Downloads key={view.scope} run={run} files={[["a log of Inspect", `inspect/${view.scope}`], ["SWE-bench's predictions", `predictions/${view.scope}`]]} />
      <h2 id="groups">Groups</h2>
      <Table<GroupLine>
        caption="Groups: the samples of one task each"
        rows={view.groups}
        link={(group) => to.group(run, view.scope, group.group)}
        empty="No episode has begun."
        columns={[
          { name: "group", cell: (group) => group.group, by: (group) => group.group },
          { name: "task", cell: (group) => <a href={to.task(run, group.instance)}>{group.instance}</a>, by: (group) => group.instance },
          { name: "samples", cell: (group) => <Samples group={group} run={run} /> },
          { name: "mean reward", right: true, cell: (group) => number(group.rewardMean), by: (group) => group.rewardMean ?? -Infinity },
          { name: "std", right: true, cell: (group) => number(group.rewardStd), by: (group) => group.rewardStd ?? -Infinity },
          { name: "batch", cell: (group) => (group.dropped ? <span class="mark">not in it: {DROPPED[group.dropped] ?? group.dropped}</span> : ""), by: (group) => group.dropped ?? "" },
        ]}
      />
      <h2 id="episodes">Episodes</h2>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <label>
          outcome{" "}
          <select value={outcome} onChange={(event) => setOutcome(event.currentTarget.value)}>
            <option value="">all ({all.length})</option>
            {["Resolved", "Unresolved", "Void", "Unfinished"].map((name) => (
              <option key={name} value={name}>{name} ({count(name)})</option>
            ))}
          </select>
        </label>
        <label>
          <input type="checkbox" checked={marked} onChange={(event) => setMarked(event.currentTarget.checked)} /> only marked ones
        </label>
        <span class="quiet" role="status">{plural(episodes.length, "episode")}</span>
      </form>
      <Table<EpisodeLine>
        caption="Episodes"
        rows={episodes}
        link={(line) => to.episode(run, line.path)}
        empty="No episode fits the filter."
        columns={episodeColumns(run)}
      />
      <h2 id="times">Times</h2>
      <p class="quiet">The slowest episodes: waits for the infrastructure, the agent's own time, grading.</p>
      <LaneLegend names={LANES} />
      <ul class="lanes">
        {slowest.map((line) => (
          <li key={line.path}>
            <a href={to.episode(run, line.path)}>{line.name}</a>
            <Lane parts={laneOf(line)} longest={longest} />
            <span class="quiet">{duration(laneLength(line))}</span>
          </li>
        ))}
      </ul>
      <h2 id="voids">Void attempts</h2>
      <Table
        caption="Attempts that the infrastructure ended; they have no reward"
        rows={view.voids}
        link={(line) => to.episode(run, line.path)}
        empty="None."
        columns={[
          { name: "attempt", cell: (line) => line.path.split("/").at(-1) },
          { name: "reason", cell: (line) => line.reason, by: (line) => line.reason },
          { name: "cause", cell: (line) => line.message },
          { name: "turns", right: true, cell: (line) => line.turns, by: (line) => line.turns },
          { name: "tokens", right: true, cell: (line) => line.tokens, by: (line) => line.tokens },
          { name: "at", cell: (line) => time(line.at), by: (line) => line.at },
        ]}
      />
    </>
  );
}

/** One square for each sample. */
function Samples(props: { group: GroupLine; run: number }): JSX.Element {
  return (
    <span class="samples">
      {props.group.episodes.map((line) => (
        <a
          key={line.path}
          class={`chip ${line.outcome.toLowerCase()}`}
          href={to.episode(props.run, line.path)}
          aria-label={`sample ${line.sample}: ${line.outcome}`}
          title={`sample ${line.sample}: ${line.outcome}, reward ${number(line.reward)}`}
        >
          {line.outcome === "Resolved" ? "✓" : line.outcome === "Unresolved" ? "✗" : line.outcome === "Void" ? "∅" : "…"}
        </a>
      ))}
    </span>
  );
}
