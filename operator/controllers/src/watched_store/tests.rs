use super::*;
use crate::parent::Controlled;

fn guarded(name: &str, version: &str) -> DeserializeGuard<SandboxPool> {
    let pool = serde_json::json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "SandboxPool",
        "metadata": {"name": name, "namespace": "team", "resourceVersion": version, "uid": format!("uid-of-{name}")},
        "spec": {"max": 1},
    });
    DeserializeGuard(Ok(serde_json::from_value(pool).unwrap()))
}

fn reader(name: &str) -> Parent {
    Parent {
        kind: Controlled::Run,
        namespace: "team".into(),
        name: name.into(),
    }
}

/// A watched store with its writer: feeding it an event returns the readers to trigger.
struct Seeing {
    watched: WatchedStore<SandboxPool>,
    writer: reflector::store::Writer<DeserializeGuard<SandboxPool>>,
}

impl Seeing {
    fn new() -> Self {
        let (store, writer) = reflector::store();
        let watched = WatchedStore {
            store,
            filled: watch::Sender::new(false),
            readers: Mutex::default(),
            before_list: Mutex::default(),
            forget: OnceLock::new(),
        };
        Self { watched, writer }
    }

    fn listed(pools: &[(&str, &str)]) -> Self {
        let mut seeing = Self::new();
        seeing.list(pools);
        seeing
    }

    fn sees(&mut self, event: Event<DeserializeGuard<SandboxPool>>) -> Vec<String> {
        self.writer.apply_watcher_event(&event);
        let mut names: Vec<String> = self
            .watched
            .concerned(&event)
            .into_iter()
            .map(|reader| reader.name)
            .collect();
        names.sort();
        names
    }

    fn gone(&mut self, event: Event<DeserializeGuard<SandboxPool>>) -> Vec<String> {
        self.writer.apply_watcher_event(&event);
        self.watched.gone(&event).into_iter().collect()
    }

    fn list(&mut self, pools: &[(&str, &str)]) -> Vec<String> {
        self.sees(Event::Init);
        for (name, version) in pools {
            self.sees(Event::InitApply(guarded(name, version)));
        }
        self.sees(Event::InitDone)
    }

    async fn reads(&self, who: &str, pool: &str) -> Option<String> {
        self.watched.read("team", pool, &reader(who)).await?.resource_version()
    }
}

#[tokio::test]
async fn a_reader_is_told_once_when_what_it_read_changes() {
    let mut seeing = Seeing::listed(&[("a", "1"), ("b", "1")]);
    assert_eq!(seeing.reads("run", "a").await.as_deref(), Some("1"));
    assert!(seeing.sees(Event::Apply(guarded("b", "2"))).is_empty());
    assert_eq!(seeing.sees(Event::Apply(guarded("a", "3"))), ["run"]);
    assert!(
        seeing.sees(Event::Apply(guarded("a", "4"))).is_empty(),
        "it has not read again"
    );
    assert_eq!(seeing.reads("run", "a").await.as_deref(), Some("4"));
    assert_eq!(seeing.sees(Event::Delete(guarded("a", "4"))), ["run"]);
    assert_eq!(seeing.reads("run", "a").await, None);
}

#[test]
fn a_kind_is_listed_with_the_end_of_its_first_list_and_stays_so_during_later_ones() {
    let mut seeing = Seeing::new();
    let listed = seeing.watched.listed();
    seeing.sees(Event::Init);
    seeing.sees(Event::InitApply(guarded("a", "1")));
    assert!(!*listed.borrow());
    assert_eq!(seeing.watched.store().len(), 0);
    seeing.sees(Event::InitDone);
    assert!(*listed.borrow());
    assert_eq!(seeing.watched.store().len(), 1);
    seeing.sees(Event::Init);
    assert!(*listed.borrow());
    assert_eq!(seeing.watched.store().len(), 1);
}

#[tokio::test]
async fn who_found_nothing_is_told_when_there_is_something() {
    let mut seeing = Seeing::listed(&[]);
    assert_eq!(seeing.reads("run", "a").await, None);
    assert_eq!(seeing.sees(Event::Apply(guarded("a", "1"))), ["run"]);
}

#[tokio::test]
async fn what_was_missed_while_the_watch_was_interrupted_is_told_after_the_next_list() {
    let mut seeing = Seeing::listed(&[("same", "1"), ("changed", "1"), ("deleted", "1")]);
    for pool in ["same", "changed", "deleted", "made"] {
        seeing.reads(&format!("reads-{pool}"), pool).await;
    }
    let told = seeing.list(&[("same", "1"), ("changed", "2"), ("made", "1")]);
    assert_eq!(told, ["reads-changed", "reads-deleted", "reads-made"]);
    assert!(seeing.list(&[("same", "1")]).is_empty(), "told once");
}

#[test]
fn an_object_that_was_deleted_is_told_to_be_gone_also_when_its_deletion_was_missed() {
    let mut seeing = Seeing::listed(&[("a", "1"), ("b", "1"), ("c", "1")]);
    assert_eq!(seeing.gone(Event::Delete(guarded("a", "1"))), ["uid-of-a"]);
    assert!(seeing.gone(Event::Init).is_empty());
    assert!(seeing.gone(Event::InitApply(guarded("c", "2"))).is_empty());
    assert_eq!(seeing.gone(Event::InitDone), ["uid-of-b"]);
    assert!(seeing.gone(Event::Apply(guarded("c", "3"))).is_empty());
}
