//! The rollout driver of a run: episodes, verdicts, raw rewards, iterations, promotions.
//!
//! The flow of one iteration: [`episode`] runs the policy on [`tasks`] (words from [`agent`], ids from
//! [`grpo_chat_template`], answers from [`engine`], [`experts`] of a mixture with them, commands through [`sandbox`]);
//! [`grade`] and [`outcome`] judge its [`patch`], which gets a [`reward`], to which a [`judge`] of turns adds;
//! [`rollout`] runs many episodes at once; [`iterate`] makes a batch of them, has the [`trainer`] step and the
//! [`replicas`] serve the published weights. Everything finished is in the store before it counts. [`shared_journal`]
//! is the journal of decisions; [`live`] applies changes while the run runs. [`downloads`] bring rows and the
//! [`model`] from a hub or a bucket. A [`probe`] asks images for their modules if rows name some. [`serve`] shows the
//! cluster weights, progress and metrics; [`records_server`] shows people the records. Retries take their budget and
//! pauses from [`retry`]; [`places`] bounds how many episodes run at one time. Orders to engines and trainer carry the
//! driver's [`epoch`]. [`traces`] go to a collector, where one is named, and curves to [`trackers`].

pub mod agent;
pub mod batches;
pub mod calls;
pub mod config;
pub mod downloads;
pub mod dynamic;
pub mod engine;
pub mod episode;
pub mod epoch;
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
pub mod outside;
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
pub mod take_over;
pub mod tasks;
pub mod traces;
pub mod trackers;
pub mod trainer;
pub mod trajectory;
