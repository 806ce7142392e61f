//! What operators of a cluster do while runs work: upgrade, roll back, uninstall, move a store. Needs a cluster with
//! the images of two versions: `make test-operations`. The moves need one version only.

mod moved_store;
mod moved_to_bucket;
mod steps;
mod upgrade;
