//! Long work of rank 0 while the other ranks wait for it: publishing, and reading a checkpoint.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use grpo_model::lora::Lora;
use grpo_records::{RunStore, Store, StoreError};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::state::TrainerStore;
use object_store::ObjectStore;

use crate::common::{model, ranks};
use crate::store::save;

const PATIENCE: Duration = Duration::from_secs(60);

/// Collectives that this rank has entered.
fn entered(model: &Sharded) -> u64 {
    let positions = model.group.watch().positions(PATIENCE).unwrap();
    positions[model.group.rank() as usize]
        .clone()
        .unwrap_or_default()
        .number
}

#[test]
fn the_publishing_rank_is_busy_from_one_collective_to_the_next() {
    let pieces = ranks(2, |group| {
        let (model, mut pieces) = (model(group), 0);
        let watch = model.group.watch();
        let look = |_: &str, _: &[usize], _: &[f32]| {
            let at = watch.positions(PATIENCE).unwrap()[0].clone().unwrap();
            assert!(at.busy && at.doing == "publishing weights", "{at:?}");
            pieces += 1;
            Ok(())
        };
        model.each_published(false, "publishing weights", look).unwrap();
        pieces
    });
    assert!(pieces[0] > 10 && pieces[1] == 0, "{pieces:?}");
}

#[test]
fn an_adapter_is_published_without_the_frozen_model() {
    ranks(2, |group| {
        let lora = Lora::new(4, 8.0, &["q_proj", "up_proj"]).unwrap();
        let model = model(group).with_adapter(lora, 3).unwrap();
        let (before, mut given) = (entered(&model), 0);
        model
            .each_published(true, "publishing weights", |_, _, values| {
                given += values.len();
                Ok(())
            })
            .unwrap();
        let adapted = model.shards.iter().filter(|shard| !shard.unit.tensors.is_empty());
        assert_eq!(entered(&model) - before, adapted.count() as u64, "one for each unit");
        let whole = model.adapter_weights().unwrap();
        let whole: usize = whole.values().map(|array| array.values.len()).sum();
        assert_eq!(given, if model.group.rank() == 0 { whole } else { 0 });
    });
}

/// A store in which a checksum is computed once as many are asked for as there are files.
#[derive(Debug)]
struct Meeting {
    inner: RunStore,
    files: usize,
    asked: Mutex<usize>,
    all: Condvar,
}

#[async_trait]
impl Store for Meeting {
    fn objects(&self) -> &dyn ObjectStore {
        self.inner.objects()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    async fn checksum(&self, path: &str) -> Result<String, StoreError> {
        {
            let mut asked = self.asked.lock().unwrap();
            *asked += 1;
            self.all.notify_all();
            let (_asked, waited) = self
                .all
                .wait_timeout_while(asked, PATIENCE, |asked| *asked < self.files)
                .unwrap();
            assert!(!waited.timed_out(), "{path} is read alone");
        }
        self.inner.checksum(path).await
    }
}

#[test]
fn the_files_of_a_checkpoint_are_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    ranks(3, |group| save(&store, &model(group), 1));
    let meeting: Arc<dyn Store> = Arc::new(Meeting {
        inner: store.records().clone(),
        files: 3,
        asked: Mutex::default(),
        all: Condvar::new(),
    });
    let found = TrainerStore::new(meeting.into()).newest_checkpoint().unwrap();
    assert_eq!(found.unwrap().step, 1);
}
