// Versions of the weights: which batch made each, when it was published and promoted, and what sampled with it.

import type { JSX } from "preact";
import { time } from "../format";
import { Shown, Table, useView } from "../parts";
import { to } from "../router";
import type { RunView } from "../wire";

export function Lineage(props: { run: number; change: number }): JSX.Element {
  const loaded = useView<RunView>(`${props.run}/run`, props.change);
  return (
    <Shown of={loaded}>
      {(run) => {
        const scopes = new Map(run.iterations.map((line) => [line.iteration, line.scope]));
        const link = (iteration: number) => (
          <a key={iteration} href={to.scope(props.run, scopes.get(iteration) ?? "")}>{iteration}</a>
        );
        return (
          <>
            <h1>Weights</h1>
            <p class="quiet">A lineage begins when a trainer cannot continue the one before: its steps are made again.</p>
            <Table
              caption="Versions of the weights, the newest first"
              rows={[...run.versions].reverse()}
              empty="No version was published."
              columns={[
                { name: "version", cell: (line) => line.version, by: (line) => line.step },
                { name: "lineage", cell: (line) => line.lineage, by: (line) => line.lineage },
                { name: "made from iteration", cell: (line) => (line.fromIteration === null ? "–" : link(line.fromIteration)) },
                { name: "published", cell: (line) => time(line.published) },
                { name: "promoted", cell: (line) => time(line.promoted) },
                { name: "staleness of its batch", right: true, cell: (line) => line.staleness ?? "–", by: (line) => line.staleness ?? -1 },
                { name: "iterations that began with it", cell: (line) => <span class="samples">{line.iterations.map(link)}</span> },
                { name: "evaluated on", cell: (line) => line.evaluations.join(", ") },
                { name: "manifest", cell: (line) => <code title={line.manifestSha256}>{line.manifestSha256.slice(0, 12)}</code> },
              ]}
            />
          </>
        );
      }}
    </Shown>
  );
}
