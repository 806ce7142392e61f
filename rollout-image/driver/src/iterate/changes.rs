//! Applies changes of `run.json` between two pieces of work.

use super::Run;
use crate::fault::DriverError;
use crate::progress::Topic;
use grpo_records::Event;

impl Run {
    /// Applies changes between two pieces of work: first in the journal, then in force.
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

    /// Clears the message on the trainer; shows only problems of the file.
    pub(super) fn quiet(&self) {
        self.board.say(Topic::Trainer, None);
        self.board.say(Topic::Settings, self.live.complaint());
    }
}
