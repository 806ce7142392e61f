// Search: episodes by name, outcome, and the words of prompts, answers and observations.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isBundle, search } from "../data";
import { number, plural, whole } from "../format";
import { Outcome, Table } from "../parts";
import { scopeOf, scopeTitle, to } from "../router";
import type { SearchView } from "../wire";

export function Search(props: { run: number; words: string; change: number }): JSX.Element {
  const [found, setFound] = useState<SearchView | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => setFound(null), [props.run, props.words]);
  useEffect(() => {
    let timer = 0;
    let current = true;
    if (props.words.trim() === "" || isBundle) return;
    const ask = () =>
      search(props.run, props.words).then(
        (view) => {
          if (!current) return;
          setError(null);
          setFound(view);
          if (view.reading) timer = window.setTimeout(ask, 2000);
        },
        (problem: unknown) => current && setError(problem instanceof Error ? problem.message : String(problem)),
      );
    void ask();
    return () => {
      current = false;
      window.clearTimeout(timer);
    };
  }, [props.run, props.words, props.change]);
  return (
    <>
      <h1>Search{props.words && `: ${props.words}`}</h1>
      {isBundle && <p class="problem">A bundle has no search: it needs the server of `kubectl grpo ui`.</p>}
      {error && <p class="problem" role="alert">{error}</p>}
      {found && (
        <>
          <p role="status">
            {plural(found.all, "episode")} {found.all === 1 ? "has" : "have"} all of these words
            {found.all > found.found.length && <>; the newest {found.found.length} are shown</>}.
            {found.read < found.ended && (
              <span class="quiet"> The text of {whole(found.read)} of {whole(found.ended)} episodes is searched, the others by name{found.reading ? "; more texts are being read" : ""}.</span>
            )}
          </p>
          <Table
            caption="Episodes"
            rows={found.found}
            link={(one) => to.episode(props.run, one.path)}
            empty="None. Search finds whole words of texts, and parts of names."
            columns={[
              { name: "episode", cell: (one) => one.path.split("/").at(-1) },
              { name: "part of the run", cell: (one) => <a href={to.scope(props.run, scopeOf(one.path))}>{scopeTitle(scopeOf(one.path))}</a> },
              { name: "outcome", cell: (one) => <Outcome line={one} />, by: (one) => one.outcome },
              { name: "reward", right: true, cell: (one) => number(one.reward), by: (one) => one.reward ?? -Infinity },
            ]}
          />
        </>
      )}
    </>
  );
}
