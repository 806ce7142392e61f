//! Takes over what has changed in `run.json`, between two pieces of work.

use super::Run;
use crate::fault::DriverError;
use crate::progress::Topic;
use grpo_records::Event;

impl Run {
    /// Between two pieces of work: takes over what has changed. In the journal first, then in force.
    pub(super) async fn take_changes(&self) -> Result<(), DriverError> {
        if let Some(settings) = self.live.look().await {
            self.journal
                .record(Event::SettingsTaken {
                    settings: settings.clone(),
                })
                .await?;
            tracing::info!(?settings, "settings taken over");
            self.board
                .change(|progress| progress.iterations = Some(settings.iterations));
            self.live.take(settings);
        }
        self.quiet();
        Ok(())
    }

    /// Nothing is waited for: what is left to be said is what is wrong with the file.
    pub(super) fn quiet(&self) {
        self.board.say(Topic::Trainer, None);
        self.board.say(Topic::Settings, self.live.complaint());
    }
}
