//! Results of campaigns of random kills: `bench/results/campaigns.jsonl`, one line for each campaign.
//!
//! The file is committed, so that ten long campaigns can run one at a time, on several machines. A campaign that
//! succeeded is not repeated while [`BEHAVIOUR`] is the same; `GRPO_CHAOS_AGAIN=1` repeats it anyway.

use crate::support::{Result, repository};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io::Write, path::PathBuf, process::Command};

/// Raised when the parts that recover have changed so much that earlier campaigns no longer count: the journal, leases,
/// checkpoints, the recreation of pods.
const BEHAVIOUR: u32 = 1;
const FILE: &str = "bench/results/campaigns.jsonl";
pub const SUCCEEDED: &str = "Succeeded";

/// The parameters of a campaign. The same plan kills the same processes in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub seed: u64,
    pub kills: u64,
    /// The run's store is in a bucket.
    #[serde(default)]
    pub bucket: bool,
    /// Turns on a judge, rows of turns, dynamic sampling, and rollouts beside steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub everything: bool,
    /// How long the API server is down, and later the images.
    #[serde(default)]
    pub outage_seconds: u64,
}

/// Counts of a campaign that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Kills by process; absent if not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed: Option<BTreeMap<String, u32>>,
    /// Kills that found no process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<u32>,
    pub iterations: u32,
    /// Episodes with a verdict, each with one.
    pub verdicts: usize,
    /// Attempts that ended by a fault of the infrastructure, each repeated.
    pub voids: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated_tries: Option<u32>,
    /// Steps to which an undisturbed trainer computed the same bits; absent if they were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_steps: Option<u32>,
    /// Claims that were recomputed from the run's records and are true.
    pub checks: usize,
}

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Campaign {
    #[serde(flatten)]
    pub plan: Plan,
    pub behaviour: u32,
    /// With a trailing `+` if files were changed.
    pub commit: String,
    /// [`SUCCEEDED`], or the failure.
    pub outcome: String,
    #[serde(flatten)]
    pub counts: Option<Counts>,
    pub seconds: u64,
    /// The source of a line that no campaign wrote itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_from: Option<String>,
}

impl Campaign {
    /// A campaign of this checkout.
    pub fn ended(plan: Plan, came_to: &Result<Counts>, seconds: u64) -> Result<Self> {
        Ok(Self {
            plan,
            behaviour: BEHAVIOUR,
            commit: commit()?,
            outcome: match came_to {
                Ok(_) => SUCCEEDED.to_owned(),
                Err(failed) => failed.to_string(),
            },
            counts: came_to.as_ref().ok().cloned(),
            seconds,
            recorded_from: None,
        })
    }
}

/// The succeeded campaign with this plan and today's behaviour, if there is one.
pub fn done(plan: &Plan) -> Result<Option<Campaign>> {
    let text = std::fs::read_to_string(file())?;
    Ok(succeeded(&text, plan)?)
}

pub fn append(campaign: &Campaign) -> Result<()> {
    let mut file = std::fs::OpenOptions::new().append(true).open(file())?;
    Ok(writeln!(file, "{}", serde_json::to_string(campaign)?)?)
}

fn file() -> PathBuf {
    repository().join(FILE)
}

fn read(text: &str) -> serde_json::Result<Vec<Campaign>> {
    text.lines().map(serde_json::from_str).collect()
}

fn succeeded(text: &str, plan: &Plan) -> serde_json::Result<Option<Campaign>> {
    let is_done = |one: &Campaign| one.plan == *plan && one.behaviour == BEHAVIOUR && one.outcome == SUCCEEDED;
    Ok(read(text)?.into_iter().find(is_done))
}

/// The commit without the file itself, which changes with each campaign.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| Command::new("git").args(arguments).current_dir(repository()).output();
    let head = git(&["rev-parse", "--short", "HEAD"])?;
    let changes = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        &format!(":!{FILE}"),
    ])?;
    let changed = if changes.stdout.is_empty() { "" } else { "+" };
    Ok(format!("{}{changed}", String::from_utf8(head.stdout)?.trim()))
}

#[test]
fn every_recorded_campaign_can_be_read_and_says_what_it_counted() -> Result<()> {
    for campaign in read(&std::fs::read_to_string(file())?)? {
        let counted = campaign.counts.as_ref().is_some_and(|counts| counts.iterations > 0);
        assert_eq!(campaign.outcome == SUCCEEDED, counted, "{campaign:?}");
        assert!(
            !campaign.commit.is_empty() && campaign.behaviour <= BEHAVIOUR,
            "{campaign:?}"
        );
    }
    Ok(())
}

#[test]
fn a_campaign_is_run_until_it_succeeded_with_the_behaviour_of_today() -> Result<()> {
    let plan = Plan {
        seed: 3,
        kills: 100,
        bucket: false,
        everything: false,
        outage_seconds: 600,
    };
    let failed = Campaign::ended(plan.clone(), &Err("a verdict is lost".into()), 9)?;
    let passed = Campaign::ended(
        plan.clone(),
        &Ok(Counts {
            iterations: 7,
            ..Counts::default()
        }),
        9,
    )?;
    let earlier = Campaign {
        behaviour: BEHAVIOUR - 1,
        ..passed.clone()
    };
    let other = Campaign {
        plan: Plan {
            outage_seconds: 0,
            ..plan.clone()
        },
        ..passed.clone()
    };
    let lines = |campaigns: &[&Campaign]| -> Result<String> {
        let lines: serde_json::Result<Vec<String>> = campaigns.iter().map(serde_json::to_string).collect();
        Ok(lines?.join("\n"))
    };
    assert_eq!(succeeded(&lines(&[&failed, &earlier, &other])?, &plan)?, None);
    let all = lines(&[&failed, &earlier, &other, &passed])?;
    assert_eq!(succeeded(&all, &plan)?, Some(passed));
    assert!(succeeded("no campaign", &plan).is_err());
    Ok(())
}
