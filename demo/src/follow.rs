//! Follows a running GrpoRun through a watch, without polling: stage, iteration, episodes, resolved rate.
//!
//! A terminal shows two bars, any other output a line for each milestone. It ends when the run ends; after a failure,
//! with the run's own message.

use futures::TryStreamExt;
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_crds::{Progress, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kube::api::Api;
use kube::runtime::watcher;
use std::time::{Duration, Instant};

#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error("watching GrpoRun {name}: {source}; is the cluster up (make cluster)?")]
    Watch { name: String, source: watcher::Error },
    #[error("GrpoRun {name} failed: {message}")]
    Failed { name: String, message: String },
    #[error("GrpoRun {name} was deleted while it was followed")]
    Deleted { name: String },
    #[error("GrpoRun {name} did not end within {limit:?}; it is {last}")]
    TooLong {
        name: String,
        limit: Duration,
        last: String,
    },
}

/// The end of the run.
#[derive(Clone, Debug)]
pub struct Ended {
    pub run: GrpoRun,
    pub seconds: f64,
}

/// Watches until the run has ended.
pub async fn follow(api: &Api<GrpoRun>, name: &str, limit: Duration) -> Result<Ended, FollowError> {
    let mut screen = Screen::new(name);
    let began = Instant::now();
    let ended = tokio::time::timeout(limit, watch(api, name, &mut screen)).await;
    screen.close();
    match ended {
        Ok(run) => {
            let run = run?;
            let seconds = began.elapsed().as_secs_f64();
            if phase_of(&run) == Phase::Succeeded {
                Ok(Ended { run, seconds })
            } else {
                Err(FollowError::Failed {
                    name: name.to_owned(),
                    message: failure(&run),
                })
            }
        }
        Err(_) => Err(FollowError::TooLong {
            name: name.to_owned(),
            limit,
            last: screen.last,
        }),
    }
}

async fn watch(api: &Api<GrpoRun>, name: &str, screen: &mut Screen) -> Result<GrpoRun, FollowError> {
    let events = watcher(
        api.clone(),
        watcher::Config::default().fields(&format!("metadata.name={name}")),
    );
    futures::pin_mut!(events);
    let failed = |source| FollowError::Watch {
        name: name.to_owned(),
        source,
    };
    let mut seen = false;
    while let Some(event) = events.try_next().await.map_err(failed)? {
        match event {
            watcher::Event::Apply(run) | watcher::Event::InitApply(run) => {
                seen = true;
                screen.show(&run);
                if has_ended(&run) {
                    return Ok(run);
                }
            }
            watcher::Event::Delete(_) if seen => break,
            watcher::Event::Init | watcher::Event::InitDone | watcher::Event::Delete(_) => {}
        }
    }
    Err(FollowError::Deleted { name: name.to_owned() })
}

pub fn phase_of(run: &GrpoRun) -> Phase {
    run.status.as_ref().and_then(|s| s.phase).unwrap_or(Phase::Pending)
}

/// True if the run will not change any more.
pub fn has_ended(run: &GrpoRun) -> bool {
    matches!(phase_of(run), Phase::Succeeded | Phase::Failed)
}

/// The cause of a failed run, in its own words: its failing condition, the driver's fault, or its message.
pub fn failure(run: &GrpoRun) -> String {
    let Some(status) = &run.status else {
        return "it says nothing".into();
    };
    let condition = status
        .conditions
        .iter()
        .find(|c| (c.type_ == "Failed" && c.status == "True") || (c.type_ == "Succeeded" && c.status == "False"))
        .map(|c| format!("{}: {}", c.reason, c.message));
    let fault = status
        .progress
        .as_ref()
        .and_then(|p| p.fault.as_ref())
        .map(|f| format!("{}: {}", f.reason, f.message));
    condition
        .or(fault)
        .or_else(|| status.message.clone())
        .unwrap_or_else(|| "it does not say why".into())
}

/// The parts of a status that get a new line when they change.
#[derive(Clone, Debug, Default, PartialEq)]
struct Milestone {
    phase: String,
    stage: Option<Stage>,
    iteration: u32,
    evaluations: usize,
    void: u32,
    message: String,
}

impl Milestone {
    fn of(run: &GrpoRun) -> Self {
        let progress = progress_of(run);
        Self {
            phase: format!("{:?}", phase_of(run)),
            stage: progress.stage,
            iteration: progress.iteration.unwrap_or(0),
            evaluations: progress.evaluations.len(),
            void: progress.void.unwrap_or(0),
            // While the run is running, the progress says more than the message.
            message: match phase_of(run) {
                Phase::Running => String::new(),
                _ => run.status.as_ref().and_then(|s| s.message.clone()).unwrap_or_default(),
            },
        }
    }
}

fn progress_of(run: &GrpoRun) -> Progress {
    run.status.as_ref().and_then(|s| s.progress.clone()).unwrap_or_default()
}

/// One line about the state of the run.
pub fn line(run: &GrpoRun) -> String {
    let progress = progress_of(run);
    let phase = phase_of(run);
    if phase != Phase::Running {
        let message = run.status.as_ref().and_then(|s| s.message.clone()).unwrap_or_default();
        return format!("{phase:?} {message}").trim_end().to_owned();
    }
    let stage = progress.stage.map_or_else(|| "Starting".into(), |s| format!("{s:?}"));
    let mut words = vec![format!("{stage:<10}")];
    if let (Some(iteration), Some(iterations)) = (progress.iteration, progress.iterations) {
        words.push(format!("iteration {iteration}/{iterations}"));
    }
    if let (Some(done), Some(total)) = (progress.episodes_done, progress.episodes_total) {
        words.push(format!("episodes {done}/{total}"));
    }
    if let Some(rate) = progress.resolved_rate {
        words.push(format!("resolved {:.0} %", rate * 100.0));
    }
    if let Some(loss) = progress.loss {
        words.push(format!("loss {loss:.4}"));
    }
    words.extend(progress.weights.map(|weights| format!("weights {weights}")));
    if let Some(void) = progress.void.filter(|n| *n > 0) {
        words.push(format!("void {void}"));
    }
    for e in &progress.evaluations {
        words.push(format!(
            "[{} under {}: {:.0} %]",
            e.set,
            e.weights,
            e.resolved_rate * 100.0
        ));
    }
    words.join("  ")
}

/// Bars on a terminal, lines elsewhere.
struct Screen {
    began: Instant,
    iterations: ProgressBar,
    episodes: ProgressBar,
    _both: indicatif::MultiProgress,
    plain: bool,
    milestone: Milestone,
    last: String,
}

impl Screen {
    fn new(name: &str) -> Self {
        let plain = std::env::var_os("CI").is_some() || !console_is_a_terminal();
        let target = if plain {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let both = indicatif::MultiProgress::with_draw_target(target);
        let bar = |template: &str| {
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style.progress_chars("█▉▊▋▌▍▎▏ "))
        };
        let iterations = both.add(bar("{elapsed:>5} iterations {bar:30} {pos}/{len}  {msg}"));
        let episodes = both.add(bar("        episodes {bar:30} {pos}/{len}  {msg}"));
        iterations.set_message(name.to_owned());
        iterations.enable_steady_tick(Duration::from_millis(500));
        Self {
            began: Instant::now(),
            iterations,
            episodes,
            _both: both,
            plain,
            milestone: Milestone::default(),
            last: "not yet seen".into(),
        }
    }

    fn show(&mut self, run: &GrpoRun) {
        self.last = line(run);
        let progress = progress_of(run);
        if self.plain {
            let milestone = Milestone::of(run);
            if milestone != self.milestone {
                println!("{:7.1}s  {}", self.began.elapsed().as_secs_f64(), self.last);
                self.milestone = milestone;
            }
            return;
        }
        let iterations = progress.iterations.unwrap_or(0);
        self.iterations.set_length(u64::from(iterations));
        let whole = progress.stage == Some(Stage::Finished) || has_ended(run);
        let done = if whole {
            iterations
        } else {
            progress.iteration.unwrap_or(0).saturating_sub(1)
        };
        self.iterations.set_position(u64::from(done));
        self.iterations.set_message(self.last.clone());
        self.episodes
            .set_length(u64::from(progress.episodes_total.unwrap_or(0)));
        self.episodes
            .set_position(u64::from(progress.episodes_done.unwrap_or(0)));
    }

    fn close(&self) {
        self.episodes.finish_and_clear();
        self.iterations.finish_and_clear();
        if !self.plain {
            println!("{:7.1}s  {}", self.began.elapsed().as_secs_f64(), self.last);
        }
    }
}

fn console_is_a_terminal() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests;
