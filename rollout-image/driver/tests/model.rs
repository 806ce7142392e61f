//! A model from the hub: pinned when a run begins, told to the run's other processes, and the same for every later
//! driver.

use crate::process;
use crate::world::World;
use grpo_contracts::{ModelDownload, RemoteModel, RunConfig};
use grpo_crds::sources::HubModel;
use grpo_driver::downloads::Downloads;
use grpo_driver::fault::{DriverError, TerminalFault};
use grpo_driver::model::bring;
use grpo_driver::progress::Board;
use grpo_hub::played::{Content, PlayedHub};
use grpo_hub::{HubSettings, Pin, Repository};
use grpo_records::RunStore;
use std::path::PathBuf;
use tokio::sync::watch;

fn push(played: &PlayedHub, config: &'static str) {
    let files = [
        ("config.json", Content::Small(config.into())),
        ("model.safetensors", Content::Large("weights".into())),
    ];
    let files = files.map(|(path, content)| (path.to_owned(), content));
    played.push(&Repository::model("owner/name"), "main", files.into());
}

/// A run with a model from the hub.
struct Run {
    config: RunConfig,
    store: RunStore,
    hub: HubSettings,
    board: Board,
}

impl Run {
    fn new(world: &World, played: &PlayedHub, weights: bool) -> Self {
        let written = std::fs::read(process::config(world, 1)).unwrap();
        let mut config: RunConfig = serde_json::from_slice(&written).unwrap();
        let below = |name: &str| world.mount.path().join(name).display().to_string();
        config.model_path = below("current");
        config.model_download = Some(ModelDownload {
            from: RemoteModel::Hub(HubModel {
                repo: "owner/name".into(),
                revision: None,
                token_secret_ref: None,
            }),
            cache: below("cache"),
            weights,
        });
        Self {
            config,
            store: world.store(),
            hub: HubSettings {
                endpoint: Some(played.endpoint.clone()),
                ..HubSettings::default()
            },
            board: Board::new("uid-1", 1),
        }
    }

    /// The pin that a driver that starts now tells the others.
    async fn driver(&self) -> Result<Option<Pin>, DriverError> {
        let (told, seen) = watch::channel(None);
        let downloads = Downloads {
            settings: self.hub.clone(),
            store: &self.store,
            cache: PathBuf::from(&self.config.model_download.as_ref().unwrap().cache),
            board: &self.board,
        };
        bring(&self.config, &downloads, &told).await?;
        Ok(seen.borrow().clone())
    }

    fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(PathBuf::from(&self.config.model_path).join(name)).ok()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_driver_of_a_run_takes_the_commit_of_the_first_though_the_branch_moved_and_the_hub_is_away() {
    let (world, played) = (World::new(1).await, PlayedHub::start().await.unwrap());
    push(&played, "first");
    let run = Run::new(&world, &played, true);
    let told = run.driver().await.unwrap().unwrap();
    push(&played, "second");
    drop(played);
    assert_eq!(run.driver().await.unwrap().unwrap(), told);
    assert_eq!(run.file("config.json").as_deref(), Some("first"));
    assert_eq!(run.file("model.safetensors").as_deref(), Some("weights"));
    let shown = run.board.now().revisions;
    let shown: Vec<_> = shown.iter().map(|of| (of.repo.as_str(), of.commit.as_str())).collect();
    assert_eq!(shown, [("owner/name", told.commit.as_str())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_shares_its_cache_with_no_other_process_downloads_no_weights_and_tells_of_them() {
    let (world, played) = (World::new(1).await, PlayedHub::start().await.unwrap());
    push(&played, "first");
    let run = Run::new(&world, &played, false);
    let told = run.driver().await.unwrap().unwrap();
    assert!(told.files.iter().any(|file| file.path == "model.safetensors"));
    assert_eq!(
        (run.file("config.json").as_deref(), run.file("model.safetensors")),
        (Some("first"), None)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_cannot_be_had_ends_the_run_and_says_what_to_do() {
    let (world, played) = (World::new(1).await, PlayedHub::start().await.unwrap());
    push(&played, "first");
    played.gate(&Repository::model("owner/name"), "secret");
    let ended = Run::new(&world, &played, true).driver().await.unwrap_err();
    let DriverError::Terminal(TerminalFault { reason, message }) = ended else {
        panic!("{ended}");
    };
    assert_eq!(reason, "ModelUnavailable");
    assert!(
        message.contains("owner/name") && message.contains("tokenSecretRef"),
        "{message}"
    );
}
