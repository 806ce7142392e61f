// The samples of a task beside each other, with the first sampled token in which each differs from the first sample.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { bytes, number, plural } from "../format";
import { Outcome, Shown, useView } from "../parts";
import { scopeTitle, to } from "../router";
import type { GroupView, SampleView, TurnView } from "../wire";

export function Group(props: { run: number; scope: string; group: number; change: number }): JSX.Element {
  const loaded = useView<GroupView>(`${props.run}/group/${props.scope}/${props.group}`, props.change);
  return <Shown of={loaded}>{(view) => <Samples view={view} run={props.run} />}</Shown>;
}

function Samples(props: { view: GroupView; run: number }): JSX.Element {
  const { view, run } = props;
  const [hidden, setHidden] = useState<Set<string>>(new Set());
  const toggle = (path: string) => {
    const next = new Set(hidden);
    if (!next.delete(path)) next.add(path);
    setHidden(next);
  };
  const shown = view.samples.filter((sample) => !hidden.has(sample.episode.path));
  const turns = Math.max(0, ...shown.map((sample) => sample.turns.length));
  const base = view.samples.find((sample) => sample.episode.path === view.comparedWith);
  const opening = base?.turns[0]?.opening ?? [];
  return (
    <>
      <h1>Group {view.group} of {scopeTitle(view.scope)}</h1>
      <p>
        Task <a href={to.task(run, view.instance)}>{view.instance}</a>, {plural(view.samples.length, "sample")}.
        {base && <> Each is compared with sample {base.episode.sample}; <mark>marked</mark> is the first sampled token that differs.</>}
      </p>
      <fieldset class="filters">
        <legend>Samples</legend>
        {view.samples.map((sample) => (
          <label key={sample.episode.path}>
            <input type="checkbox" checked={!hidden.has(sample.episode.path)} onChange={() => toggle(sample.episode.path)} />
            {" "}{sample.episode.sample} <Outcome line={sample.episode} />
          </label>
        ))}
      </fieldset>
      <details>
        <summary>The prompt of all samples</summary>
        {opening.map((message, at) => (
          <section key={at}>
            <h3>{message.role}</h3>
            <pre tabIndex={0}>{message.content.text}</pre>
          </section>
        ))}
      </details>
      <div class="scroll beside" tabIndex={0} role="region" aria-label="Samples beside each other">
        <table>
          <caption class="hidden">Samples of the group, a turn a row</caption>
          <thead>
            <tr>
              <th scope="col">turn</th>
              {shown.map((sample) => (
                <th key={sample.episode.path} scope="col">
                  <a class="row" href={to.episode(run, sample.episode.path)}>sample {sample.episode.sample}</a>{" "}
                  <Outcome line={sample.episode} />
                  <div class="quiet">reward {number(sample.episode.reward)}, advantage {number(sample.episode.advantage)}</div>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {Array.from({ length: turns }, (_, at) => (
              <tr key={at}>
                <th scope="row">{at + 1}</th>
                {shown.map((sample) => (
                  <td key={sample.episode.path}>
                    {sample.turns[at] ? <Turn sample={sample} turn={sample.turns[at]} run={run} /> : <span class="quiet">ended</span>}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Turn(props: { sample: SampleView; turn: TurnView; run: number }): JSX.Element {
  const { sample, turn } = props;
  const differs = sample.diverges?.turn === turn.turn ? sample.diverges : null;
  return (
    <>
      {differs && <p class="mark">differs from token {differs.token + 1} on</p>}
      <pre>{differs?.offset != null ? <Marked text={turn.text.text} at={differs.offset} /> : turn.text.text}</pre>
      <Omitted count={turn.text.omitted} />
      {turn.result && <p class={turn.failed ? "failed" : "quiet"}>{turn.result}</p>}
      {turn.observation.text && (
        <details>
          <summary>what came back</summary>
          <pre>{turn.observation.text}</pre>
          <Omitted count={turn.observation.omitted} />
        </details>
      )}
      {turn.end && <p class="mark">{turn.end}</p>}
    </>
  );
}

function Omitted(props: { count: number }): JSX.Element | null {
  return props.count > 0 ? <p class="quiet">{bytes(props.count)} more: see the episode.</p> : null;
}

/** The text with the word at this place marked: a token's end is not known, its beginning is. */
export function Marked(props: { text: string; at: number }): JSX.Element {
  const rest = props.text.slice(props.at);
  const length = /^\s*\S*/.exec(rest)?.[0].length || 1;
  return (
    <>
      {props.text.slice(0, props.at)}
      <mark>{rest.slice(0, length) || "⏎"}</mark>
      {rest.slice(length)}
    </>
  );
}
