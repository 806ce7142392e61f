//! The demo's program: follows a live run, reports on its store, measures learning and compares ways of running.
//!
//! [`report`], [`learnt`] and [`show`] only read a store that was copied out of a cluster, so they work on any machine;
//! [`claims`] checks a report against such a store. [`follow`] talks to a Kubernetes cluster; [`judge`] serves
//! votes on turns to one, and [`teacher`] answers of a script, whose recording warms a policy up ([`agents`]).

pub mod agents;
pub mod arms;
pub mod chat_server;
pub mod claims;
pub mod curve;
pub mod follow;
pub mod judge;
pub mod learning;
pub mod learnt;
pub mod report;
pub mod report_text;
pub mod show;
pub mod statistics;
pub mod tasks;
pub mod teacher;
