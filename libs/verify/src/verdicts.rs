//! Checks that every verdict follows from its grader's log, which the official package judges again.

use super::grader::{Grader, GraderError};
use super::rows::TaskRows;
use super::{Check, Sources, VerifyError};
use grpo_records::folder::{EpisodeFolder, RunFolder};
use grpo_records::store::sha256_hex;
use grpo_records::{EpisodeMeta, Outcome, VerdictRecord, paths};
use std::collections::HashMap;

pub fn check(folder: &RunFolder, episodes: &[EpisodeFolder], sources: &Sources) -> Result<Vec<Check>, VerifyError> {
    let mut patches = Check::new("patches are the ones whose checksums are recorded");
    let mut judged = Check::new("verdicts follow from the graders' logs");
    let mut reused = Check::new("verdicts taken over come from the same patch and task");
    let mut bare = Check::new("without a log nothing is resolved");
    let mut voids = Check::new("voids have no reward");
    let by_path: HashMap<&str, &EpisodeFolder> = episodes.iter().map(|e| (e.path.as_str(), e)).collect();
    let rows = sources.tasks.completed_by(folder)?;
    let mut grader = sources.grader.start()?;
    for episode in episodes {
        let meta = &episode.meta;
        let path = &episode.path;
        if !meta.outcome.is_verdict() {
            voids.expect(meta.reward.is_none(), || {
                format!("{path} is {} and has reward {:?}", meta.outcome, meta.reward)
            });
            continue;
        }
        let patch = folder.patch(path).unwrap_or_default();
        let sum = (!patch.is_empty()).then(|| sha256_hex(&patch));
        let recorded = meta.patch_sha256.clone().filter(|_| meta.patch_bytes > 0);
        patches.expect(meta.patch_bytes == patch.len() && recorded == sum, || {
            format!(
                "{path}: patch.diff has {} bytes, {} are recorded, or the checksums differ",
                patch.len(),
                meta.patch_bytes
            )
        });
        let resolved = meta.outcome == Outcome::Resolved;
        let source = meta.grade.as_ref().and_then(|g| g.reused_from.as_deref());
        match (source, folder.grade_log(path)?) {
            (Some(source), _) => {
                let same = match by_path.get(source).filter(|twin| twin.meta.outcome.is_verdict()) {
                    Some(twin) => {
                        twin.meta.key.instance == meta.key.instance
                            && twin.meta.graded == meta.graded
                            && twin.meta.patch_sha256 == meta.patch_sha256
                            && twin.meta.outcome == meta.outcome
                            && twin.meta.grade.as_ref().is_some_and(|g| g.reused_from.is_none())
                    }
                    None => is_in_a_file(folder, source, meta)?,
                };
                reused.expect(same, || {
                    format!("{path} takes its verdict from {source}, which has another patch, task or verdict")
                });
            }
            (None, Some(log)) => {
                let again = judge(&mut grader, &rows, episode, &patch, log.path())?;
                // A log may end the official grader, and that of an evaluation that was ended may show anything.
                let is_judged = meta.grade.as_ref().is_none_or(|grade| grade.status == "Judged");
                let agrees = again == Ok(resolved) || (!is_judged && !resolved);
                judged.expect(agrees, || {
                    format!("{path} is {}; judged again: {again:?}", meta.outcome)
                });
            }
            (None, None) => {
                bare.expect(!resolved, || format!("{path} is Resolved and there is no grader's log"));
            }
        }
    }
    Ok(vec![patches, judged, reused, bare, voids])
}

/// Judges the verdict again. A log without a result, followed by a successful control, is unresolved.
fn judge(
    grader: &mut Grader,
    rows: &TaskRows,
    episode: &EpisodeFolder,
    patch: &[u8],
    log: &std::path::Path,
) -> Result<Result<bool, String>, GraderError> {
    let instance = &episode.meta.key.instance;
    let row = match rows.graded(instance, episode.meta.graded.as_ref()) {
        Ok(row) => row,
        Err(error) => return Ok(Err(error.to_string())),
    };
    grader.judge(instance, row, &String::from_utf8_lossy(patch), log)
}

/// Whether the verdict of an episode without a record, or with a void's, is in its file. The reward of that episode
/// failed after its verdict had been taken over, or it was not needed any more.
fn is_in_a_file(folder: &RunFolder, source: &str, meta: &EpisodeMeta) -> Result<bool, VerifyError> {
    let kept: Option<VerdictRecord> = folder.json_if_there(&paths::verdict(source))?;
    let patch = folder.patch(source).map(|patch| sha256_hex(&patch));
    Ok(kept.is_some_and(|kept| {
        Some(&kept.graded) == meta.graded.as_ref()
            && kept.outcome == meta.outcome
            && kept.grade.reused_from.is_none()
            && patch == meta.patch_sha256
    }))
}
