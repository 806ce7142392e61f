//! Lists episodes in tables, and finds the episode that a text identifies.

use crate::arguments::{Part, Wanted};
use crate::error::Error;
use crate::records::Source;
use crate::text::table;
use grpo_records::look::{Contents, EPISODES_A_PAGE, Episode, EpisodesOf};
use grpo_records::{EpisodeScope, Outcome, paths};

/// The number of candidates shown if a text fits several episodes.
const CANDIDATES: usize = 10;

/// The rows of a table, and what it leaves out.
#[derive(Debug, Default)]
pub struct Listing {
    pub scopes: Vec<EpisodeScope>,
    pub episodes: Vec<Episode>,
    /// Whether more episodes match.
    pub cut: bool,
    pub contents: Contents,
}

/// The selected scopes, the newest first: those of the iteration or set in `part`, otherwise all.
pub fn meant(contents: &Contents, part: &Part) -> Vec<EpisodeScope> {
    let fits = |scope: &&EpisodeScope| match (scope, part.iteration, &part.set) {
        (EpisodeScope::Iteration { iteration }, Some(wanted), _) => *iteration == wanted,
        (EpisodeScope::Evaluation { set, weights }, None, Some(wanted)) => {
            set == wanted && part.weights.as_ref().is_none_or(|version| version == weights)
        }
        (_, None, None) => true,
        _ => false,
    };
    let mut scopes: Vec<EpisodeScope> = contents.scopes.iter().filter(fits).cloned().collect();
    scopes.sort_by(|a, b| age(b).cmp(&age(a)));
    scopes
}

/// The sort key of scopes. Iterations come after evaluations, so that both commands begin with the newest iteration.
/// Versions are ordered by lineage and step, because as names step 9 would come after step 12.
fn age(scope: &EpisodeScope) -> (u8, usize, &str, u32) {
    match scope {
        EpisodeScope::Iteration { iteration } => (2, 0, "", *iteration),
        EpisodeScope::Evaluation { weights, .. } => {
            // The base model, which has neither, is the oldest.
            let step = paths::step_of_weights(weights);
            let lineage = weights.rsplit_once("-v").map_or("", |(lineage, _)| lineage);
            (u8::from(step.is_some()), lineage.len(), lineage, step.unwrap_or(0))
        }
    }
}

/// The episodes of a table.
pub async fn list(source: &mut Source, part: &Part, outcomes: &[Wanted], limit: usize) -> Result<Listing, Error> {
    let contents = source.contents().await?;
    let mut scopes = meant(&contents, part);
    if scopes.is_empty() {
        return Err(Error::NoEpisode(nothing_there(&contents, part)));
    }
    if part.iteration.is_none() && part.set.is_none() {
        let newest = scopes
            .iter()
            .position(|scope| matches!(scope, EpisodeScope::Iteration { .. }))
            .unwrap_or(0);
        scopes = vec![scopes.swap_remove(newest)];
    }
    let mut listing = Listing {
        contents,
        ..Listing::default()
    };
    for scope in &scopes {
        let mut wanted = of(scope);
        loop {
            let page = source.episodes(&wanted).await?;
            listing
                .episodes
                .extend(page.episodes.into_iter().filter(|episode| is_wanted(episode, outcomes)));
            match page.next {
                Some(next) if listing.episodes.len() <= limit => wanted.after = Some(next),
                _ => break,
            }
        }
    }
    listing.cut = listing.episodes.len() > limit;
    listing.episodes.truncate(limit);
    listing.scopes = scopes;
    Ok(listing)
}

fn of(scope: &EpisodeScope) -> EpisodesOf {
    EpisodesOf {
        scope: paths::scope(scope),
        limit: Some(EPISODES_A_PAGE),
        ..EpisodesOf::default()
    }
}

fn is_wanted(episode: &Episode, outcomes: &[Wanted]) -> bool {
    let outcome = episode.meta.as_ref().map(|meta| &meta.outcome);
    outcomes.is_empty() || outcomes.iter().any(|wanted| wanted.is(outcome))
}

fn nothing_there(contents: &Contents, part: &Part) -> String {
    if contents.scopes.is_empty() {
        return "the run has no episodes yet".into();
    }
    let asked = match (&part.iteration, &part.set, &part.weights) {
        (Some(iteration), ..) => format!("iteration {iteration}"),
        (_, Some(set), Some(weights)) => format!("set {set} under {weights}"),
        (_, Some(set), None) => format!("set {set}"),
        _ => "that".into(),
    };
    format!(
        "there are no episodes of {asked}; there are {}",
        what_there_is(contents)
    )
}

/// `iterations 1-3; sets heldout (l1-v0, l1-v3)`.
pub fn what_there_is(contents: &Contents) -> String {
    let mut words = Vec::new();
    let iterations = contents.scopes.iter().filter_map(|scope| match scope {
        EpisodeScope::Iteration { iteration } => Some(*iteration),
        EpisodeScope::Evaluation { .. } => None,
    });
    let bounds = iterations.fold(None, |bounds: Option<(u32, u32)>, n| {
        Some(bounds.map_or((n, n), |(low, high)| (low.min(n), high.max(n))))
    });
    match bounds {
        Some((low, high)) if low == high => words.push(format!("iteration {low}")),
        Some((low, high)) => words.push(format!("iterations {low}-{high}")),
        None => {}
    }
    let mut sets: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut scopes: Vec<&EpisodeScope> = contents.scopes.iter().collect();
    scopes.sort_by(|a, b| age(a).cmp(&age(b)));
    for scope in scopes {
        if let EpisodeScope::Evaluation { set, weights } = scope {
            match sets.iter_mut().find(|(name, _)| name == set) {
                Some((_, versions)) => versions.push(weights),
                None => sets.push((set, vec![weights])),
            }
        }
    }
    words.extend(
        sets.iter()
            .map(|(set, versions)| format!("set {set} ({})", versions.join(", "))),
    );
    words.join("; ")
}

/// The table, with a last line about the episodes it leaves out.
pub fn text(listing: &Listing) -> String {
    let several = listing.scopes.len() > 1;
    let rows: Vec<Vec<String>> = listing.episodes.iter().map(|episode| row(episode, several)).collect();
    let head = [
        "EPISODE", "OUTCOME", "REWARD", "TURNS", "TOKENS", "SAMPLED", "ENDED", "WEIGHTS",
    ];
    let scopes: Vec<String> = listing.scopes.iter().map(EpisodeScope::to_string).collect();
    let shown = if listing.cut { "of those shown " } else { "" };
    let mut out = format!("{}: {shown}{}\n", scopes.join(", "), counts(&listing.episodes));
    if !rows.is_empty() {
        out += &table(&head, &rows);
    }
    if listing.cut {
        out += &format!("only {} are shown; --limit shows more\n", listing.episodes.len());
    }
    out += &format!("records of {}\n", what_there_is(&listing.contents));
    out
}

fn row(episode: &Episode, several: bool) -> Vec<String> {
    let name = match several {
        true => episode.path.clone(),
        false => episode.name().to_owned(),
    };
    let Some(meta) = &episode.meta else {
        let dash = || "-".to_owned();
        return vec![
            name,
            "Unfinished".into(),
            dash(),
            dash(),
            dash(),
            dash(),
            dash(),
            dash(),
        ];
    };
    vec![
        name,
        meta.outcome.to_string(),
        meta.reward.map_or_else(|| "-".into(), |reward| format!("{reward}")),
        meta.turns.to_string(),
        meta.tokens.to_string(),
        meta.sampled_tokens.to_string(),
        format!("{:?}", meta.end),
        meta.weights.join(","),
    ]
}

fn counts(episodes: &[Episode]) -> String {
    let count = |fits: fn(Option<&Outcome>) -> bool| {
        let outcomes = episodes
            .iter()
            .map(|episode| episode.meta.as_ref().map(|meta| &meta.outcome));
        outcomes.filter(|outcome| fits(*outcome)).count()
    };
    let kinds = [
        (count(|outcome| Wanted::Resolved.is(outcome)), "resolved"),
        (count(|outcome| Wanted::Unresolved.is(outcome)), "unresolved"),
        (count(|outcome| Wanted::Void.is(outcome)), "void"),
        (count(|outcome| Wanted::Unfinished.is(outcome)), "unfinished"),
    ];
    let words: Vec<String> = kinds
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| format!("{n} {word}"))
        .collect();
    match words.is_empty() {
        true => "no episodes".into(),
        false => words.join(", "),
    }
}

/// The folder of the one episode that `words` identify: by the whole folder, the name, or a part of it. The newest
/// scope with a match decides.
pub async fn find(source: &mut Source, part: &Part, words: &str) -> Result<String, Error> {
    if paths::parse_episode(words).is_some() {
        return Ok(words.to_owned());
    }
    let contents = source.contents().await?;
    for scope in meant(&contents, part) {
        let root = paths::scope(&scope);
        // Words with a slash also restrict the folder.
        let name = words.rsplit('/').next().unwrap_or(words);
        let wanted = EpisodesOf {
            containing: Some(name.to_owned()),
            ..of(&scope)
        };
        let found = source.episodes(&wanted).await?.episodes;
        let fitting: Vec<&Episode> = found
            .iter()
            .filter(|e| format!("{root}/{}", e.name()).contains(words))
            .collect();
        match fitting.as_slice() {
            [] => {}
            [one] => return Ok(one.path.clone()),
            several => {
                return match several.iter().find(|e| e.name() == words) {
                    Some(exact) => Ok(exact.path.clone()),
                    None => Err(Error::NoEpisode(ambiguous(words, &scope, several))),
                };
            }
        }
    }
    let there = match contents.scopes.is_empty() {
        true => "the run has none yet".to_owned(),
        false => format!("there are {}", what_there_is(&contents)),
    };
    Err(Error::NoEpisode(format!(
        "no episode's name contains {words:?}; {there}; `kubectl grpo episodes` lists their names"
    )))
}

fn ambiguous(words: &str, scope: &EpisodeScope, several: &[&Episode]) -> String {
    let mut names: Vec<&str> = several.iter().take(CANDIDATES).map(|episode| episode.name()).collect();
    if several.len() > CANDIDATES {
        names.push("…");
    }
    format!(
        "{words:?} names {} episodes of {scope}: {}; say more of the name",
        several.len(),
        names.join(", ")
    )
}

#[cfg(test)]
mod tests;
