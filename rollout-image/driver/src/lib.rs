//! The rollout driver of a run: episodes, verdicts, raw rewards, iterations, promotions.
//!
//! One iteration, as it flows through these modules: [`tasks`] are put to the policy by [`episode`] (words from
//! [`agent`], ids from [`grpo_chat_template`], answers from [`engine`], [`experts`] of a mixture with them, commands
//! through [`sandbox`]); its [`patch`] is judged by [`grade`] and [`outcome`] and has its [`reward`], to which a
//! [`judge`] of turns adds; [`rollout`] runs many of them at once; [`iterate`] makes a batch of them, has the
//! [`trainer`] step and the [`replicas`] serve what it published. Everything finished is in the store before it
//! counts; [`shared_journal`] is the journal of decisions, [`live`] takes over what changes in the run while it runs.
//! [`downloads`] bring rows and the [`model`] from the hub.
//! A [`probe`] asks images which modules they have, where rows name some.
//! [`serve`] shows the cluster weights, progress and numbers; [`records_server`] shows people the records. Retries take
//! their budget and pauses from [`retry`]; [`places`] bounds how many episodes run at one time.

pub mod agent;
pub mod batches;
pub mod calls;
pub mod config;
pub mod downloads;
pub mod dynamic;
pub mod engine;
pub mod episode;
pub mod experts;
pub mod fault;
pub mod finetune;
pub mod grade;
pub mod grader_worker;
pub mod iterate;
pub mod judge;
pub mod live;
pub mod metrics;
pub mod model;
pub mod outcome;
pub mod patch;
pub mod places;
pub mod probe;
pub mod progress;
pub mod recording;
pub mod records_server;
pub mod replicas;
pub mod retry;
pub mod reward;
pub mod rollout;
pub mod sampling;
pub mod sandbox;
pub mod seeds;
pub mod serve;
pub mod setup;
pub mod shared_journal;
pub mod start;
pub mod tasks;
pub mod trainer;
pub mod trajectory;
