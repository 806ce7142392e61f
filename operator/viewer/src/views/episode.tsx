// One episode: every turn with its tokens and what came back; beside the turns the verdict and the patch; and what a person
// should look at.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isBundle, log } from "../data";
import { bytes, duration, number, plural, spaced, time, whole } from "../format";
import { Block, Downloads, Facts, Lane, LaneLegend, Outcome, Shown, useView } from "../parts";
import { scopeTitle, to } from "../router";
import { COLOURS, Tokens, type Colour } from "../tokens";
import type { EpisodeDetail, LogView, TokensView, TurnView } from "../wire";

const LANES = ["wait", "sample", "exec"];

export function Episode(props: { run: number; path: string; turn: number | null; change: number; tokens: boolean }): JSX.Element {
  const loaded = useView<EpisodeDetail>(`${props.run}/episode/${props.path}`, props.change);
  return (
    <Shown of={loaded}>
      {(detail) => <Detail key={props.path} detail={detail} run={props.run} turn={props.turn} tokens={props.tokens} change={props.change} />}
    </Shown>
  );
}

function Detail(props: { detail: EpisodeDetail; run: number; turn: number | null; tokens: boolean; change: number }): JSX.Element {
  const { detail, run } = props;
  const line = detail.episode;
  const tokens = useView<TokensView[]>(props.tokens ? `${run}/tokens/${line.path}` : null, props.change);
  const [colour, setColour] = useState<Colour>("probability");
  const longest = Math.max(1, ...detail.turns.map((turn) => turn.sampleMillis + turn.execMillis + turn.waitedMillis));

  useEffect(() => {
    if (props.turn !== null) document.getElementById(`turn-${props.turn}`)?.scrollIntoView();
  }, [props.turn]);

  return (
    <>
      <h1>{line.name}</h1>
      <p>
        <Outcome line={line} /> in <a href={to.scope(run, detail.scope)}>{scopeTitle(detail.scope)}</a>, sample {line.sample} of{" "}
        <a href={to.group(run, detail.scope, line.group)}>group {line.group}</a>, task{" "}
        <a href={to.task(run, line.instance)}>{line.instance}</a>
        {line.attempt > 1 && <>, attempt {line.attempt}</>}
        {line.untrainable && <>; answered by a server that speaks only text, so no batch takes it</>}
      </p>
      {line.message && <p class={line.outcome === "Void" ? "problem" : "quiet"}>{line.message}</p>}
      <Facts
        of={[
          ["reward", number(line.reward)],
          ["advantage", number(line.advantage)],
          ["ended by", line.end || "has not ended"],
          ["turns", whole(detail.turns.length)],
          ["tokens", `${whole(line.tokens)}, ${whole(line.sampledTokens)} of them sampled`],
          ["weights", line.weights.join(", ") || "–"],
          ["image", detail.image ?? "–"],
          ["waited", duration(line.waitedMillis)],
          ["agent", duration(line.agentMillis)],
          ["graded in", duration(line.gradeMillis)],
          ["verdict at", time(line.at)],
        ]}
      />
      {detail.reward.length > 1 && (
        <p>
          Reward: {detail.reward.map((part, at) => `${at > 0 && part.value >= 0 ? "+ " : ""}${number(part.value)} (${part.name})`).join(" ")}
        </p>
      )}
      {line.at ? <Downloads run={run} files={[["ATIF", `atif/${line.path}`], ["mini-swe-agent's trajectory", `mini-swe-agent/${line.path}`]]} /> : null}
      <Flags detail={detail} run={run} />
      {detail.rows.length > 1 && (
        <details>
          <summary>{plural(detail.rows.length, "row")}: the agent changed its history</summary>
          <ul>
            {detail.rows.map((row) => (
              <li key={row.row}>
                row {row.row}: turns {row.turns.map((turn) => turn + 1).join(", ")}; {whole(row.sampled)} of {whole(row.tokens)} tokens were sampled
              </li>
            ))}
          </ul>
        </details>
      )}
      <div class="split">
        <section>
          <h2 id="turns">Turns</h2>
          {detail.turns.length === 0 && <p class="quiet">No turn is recorded.</p>}
          {props.tokens && tokens.error && <p class="problem" role="alert">{tokens.error}</p>}
          {props.tokens && tokens.value && <Colours of={tokens.value} colour={colour} set={setColour} />}
          {detail.turns.length > 0 && <LaneLegend names={LANES} />}
          {detail.turns.map((turn) => (
            <Turn
              key={turn.turn}
              turn={turn}
              longest={longest}
              tokens={props.tokens ? tokens.value?.find((one) => one.turn === turn.turn) : undefined}
              advantage={line.advantage}
              colour={colour}
            />
          ))}
        </section>
        <div class="outcomes" tabIndex={0} role="region" aria-label="Patch and verdict">
          <h2 id="verdict">Verdict</h2>
          <Verdict detail={detail} run={run} />
          <h2 id="patch">Patch</h2>
          {detail.patch && detail.patch.text !== "" ? <Patch text={detail.patch.text} omitted={detail.patch.omitted} /> : <p class="quiet">There is none.</p>}
          {detail.process && (
            <>
              <h2 id="process">The agent's process</h2>
              <p>{detail.process.end}; {plural(detail.process.replays, "answer was sent again", "answers were sent again")}.</p>
              <Block text={detail.process.log} label="The agent's output" />
            </>
          )}
        </div>
      </div>
    </>
  );
}

function Flags(props: { detail: EpisodeDetail; run: number }): JSX.Element | null {
  if (props.detail.flags.length === 0) return null;
  return (
    <details class="flags">
      <summary>{plural(props.detail.flags.length, "flag")}: {[...new Set(props.detail.flags.map((flag) => spaced(flag.kind)))].join(", ")}</summary>
      <ul>
        {props.detail.flags.map((flag, at) => (
          <li key={at}>
            <strong>{spaced(flag.kind)}</strong>{" "}
            {flag.turn === null ? "patch" : <a href={to.episode(props.run, props.detail.episode.path, flag.turn)}>turn {flag.turn + 1}</a>}:{" "}
            <code>{flag.what}</code>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** Chooses what the colours of tokens show. */
function Colours(props: { of: TokensView[]; colour: Colour; set: (colour: Colour) => void }): JSX.Element {
  const trained = props.of.find((one) => one.trainer !== null)?.trainer;
  const problem = props.of.find((one) => one.problem !== null)?.problem;
  return (
    <>
      <fieldset class="filters">
        <legend>Colour tokens by</legend>
        {(Object.keys(COLOURS) as Colour[]).map((colour) => (
          <label key={colour}>
            <input
              type="radio"
              name="colour"
              checked={props.colour === colour}
              disabled={!trained && colour !== "probability"}
              onChange={() => props.set(colour)}
            />{" "}
            {colour}
          </label>
        ))}
      </fieldset>
      <p class="quiet">
        Strong colours: {COLOURS[props.colour]}.{" "}
        {trained
          ? `Underlined: clipped in step ${trained.step}. Struck through: left out by a correction.`
          : "The trainer has not computed this episode: it is in no batch, its step is not done, or its store is older."}
      </p>
      {problem && <p class="problem" role="alert">{problem}</p>}
    </>
  );
}

function Turn(props: { turn: TurnView; longest: number; tokens: TokensView | undefined; advantage: number | null; colour: Colour }): JSX.Element {
  const { turn } = props;
  return (
    <article class="turn" id={`turn-${turn.turn}`} aria-labelledby={`title-${turn.turn}`}>
      {turn.opening.map((message, at) => (
        <details key={at} open={turn.turn === 0 && message.role !== "system"}>
          <summary>{message.role}{turn.branch && turn.turn > 0 ? ` (opens row ${turn.row}: ${spaced(turn.branch)})` : ""}</summary>
          <Block text={message.content} label={`Message of ${message.role}`} />
        </details>
      ))}
      <header>
        <h3 id={`title-${turn.turn}`}>Turn {turn.turn + 1}</h3>
        <span class="quiet">
          {plural(turn.sampledTokens, "token")} by {turn.weights}, mean logprob{" "}
          {number(turn.logprob / Math.max(1, turn.sampledTokens))}, prompt {whole(turn.promptTokens)}
          {turn.row > 0 ? `, row ${turn.row}` : ""}
        </span>
        <Lane
          parts={[["wait", turn.waitedMillis], ["sample", turn.sampleMillis], ["exec", turn.execMillis]]}
          longest={props.longest}
        />
      </header>
      {turn.omittedTurns && <p class="quiet">Its history is without turns {turn.omittedTurns[0] + 1} to {turn.omittedTurns[1] + 1}.</p>}
      {props.tokens ? <Tokens of={props.tokens} advantage={props.advantage} colour={props.colour} /> : <Block text={turn.text} class="sampled" label={`Answer of turn ${turn.turn + 1}`} />}
      {turn.calls.map((call, at) => (
        <div class="call" key={at}>
          <strong>{call.name}</strong> <code class="quiet">{call.id}</code>
          <Block text={call.arguments} label={`Arguments of ${call.name}`} />
        </div>
      ))}
      {turn.result && <p class={turn.failed ? "failed" : "quiet"}>{turn.result}</p>}
      {turn.observation.text !== "" && (
        <details open={turn.observation.text.length < 4000}>
          <summary>What came back ({plural(turn.observationTokens, "token")})</summary>
          <Block text={turn.observation} label={`What came back in turn ${turn.turn + 1}`} />
        </details>
      )}
      {(turn.injected > 0 || turn.overruled.length > 0) && (
        <p class="quiet">
          {turn.injected > 0 && <>{plural(turn.injected, "message")} added by the agent. </>}
          {turn.overruled.length > 0 && <>Overruled: {turn.overruled.join("; ")}.</>}
        </p>
      )}
      {turn.votes.length > 0 && (
        <details>
          <summary>Judge: score {number(turn.score)} of {plural(turn.votes.length, "vote")}</summary>
          {turn.votes.map((vote, at) => (
            <div key={at}>
              <strong>{vote.vote === null ? `no vote${vote.missing ? `: ${vote.missing}` : ""}` : vote.vote > 0 ? "+1" : "−1"}</strong>
              <Block text={vote.text} label={`Vote ${at + 1}`} />
            </div>
          ))}
        </details>
      )}
      {turn.end && <p class="mark">{spaced(turn.end)}</p>}
    </article>
  );
}

function Patch(props: { text: string; omitted: number }): JSX.Element {
  const kind = (line: string) => (/^(\+\+\+|---|diff |index )/.test(line) ? "file" : line[0] === "+" ? "added" : line[0] === "-" ? "removed" : line.startsWith("@@") ? "hunk" : "");
  return (
    <>
      <pre class="patch" tabIndex={0} role="region" aria-label="Patch">
        {props.text.split("\n").map((line, at) => (
          <span key={at} class={kind(line)}>{line}{"\n"}</span>
        ))}
      </pre>
      {props.omitted > 0 && <p class="quiet">{bytes(props.omitted)} more are in the store.</p>}
    </>
  );
}

function Verdict(props: { detail: EpisodeDetail; run: number }): JSX.Element {
  const { grade, episode } = props.detail;
  if (grade === null) return <p class="quiet">There is none yet.</p>;
  return (
    <>
      <Facts
        of={[
          ["grader", grade.status],
          ["fail to pass", `${grade.failToPass[0]} passed, ${grade.failToPass[1]} failed`],
          ["pass to pass", `${grade.passToPass[0]} passed, ${grade.passToPass[1]} failed`],
          ["tries", whole(grade.tries)],
          ["taken over from", grade.reusedFrom ? <a href={to.episode(props.run, grade.reusedFrom)}>{grade.reusedFrom.split("/").at(-1)}</a> : "–"],
        ]}
      />
      {grade.notes.length > 0 && <ul>{grade.notes.map((note, at) => <li key={at}>{note}</li>)}</ul>}
      {!isBundle && !grade.reusedFrom && <Log run={props.run} episode={episode.path} />}
    </>
  );
}

/** The grader's log, a part at a time: it may have 64 MiB. */
function Log(props: { run: number; episode: string }): JSX.Element {
  const [parts, setParts] = useState<LogView[]>([]);
  const [error, setError] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const last = parts.at(-1);
  const more = async () => {
    setBusy(true);
    try {
      const part = await log(props.run, props.episode, last?.to ?? 0);
      setParts([...parts.slice(-3), part]);
      setError(null);
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    }
    setBusy(false);
  };
  return (
    <section class="log">
      {error && <p class="problem" role="alert">{error}</p>}
      {parts.length > 0 && <pre tabIndex={0} role="region" aria-label="Log of the grader">{parts.map((part) => part.text).join("")}</pre>}
      {(!last || last.more) && (
        <button type="button" disabled={isBusy} onClick={() => void more()}>{last ? `Show more, from ${bytes(last.to)} on` : "Show the grader's log"}</button>
      )}
    </section>
  );
}
