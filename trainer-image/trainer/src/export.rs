//! Exports the trained weights as a directory: a Hugging Face model (an adapter merged into it), or the adapter alone
//! in PEFT's format.
//!
//! Units are gathered one after the other, and rank 0 writes each at once, so memory holds one unit besides the shards.

use std::path::Path;

use grpo_model::ModelError;
use grpo_model::weights::export::Export;
use grpo_model::weights::{Precision, units};
use tch::Kind;

use crate::error::TrainError;
use crate::sharded::Sharded;

/// Bytes of one file of a model: transformers' default.
pub const FILE_BYTES: u64 = 5_000_000_000;

/// Form of the exported directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Config, tokenizer and all weights; an adapter is merged into its weights.
    Model,
    /// `adapter_config.json` and the adapter's matrices.
    Adapter,
}

/// Options of an export.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub form: Form,
    pub precision: Precision,
    pub file_bytes: u64,
}

impl Sharded {
    /// Writes to `target`, which must not exist and gets its name when all files are complete. Every rank must call it,
    /// and every rank learns whether rank 0 could write. `model_dir`, from which the model was read, is the source of
    /// config and tokenizer, and the base that an adapter names.
    pub fn export(&self, target: &Path, model_dir: &Path, options: &Options) -> Result<(), TrainError> {
        let first = self.group.rank() == 0;
        let mut writing = first.then(|| self.begin(target, model_dir, options));
        // The other ranks gather with rank 0 even if its disk fails.
        for index in 0..self.shards.len() {
            let (unit, tensors) = match options.form {
                Form::Model => self.unit(index)?,
                Form::Adapter => self.adapter(index)?,
            };
            if let Some(Ok(export)) = &mut writing {
                let written = unit.tensors.iter().zip(&tensors).try_for_each(|((name, _), tensor)| {
                    let values = Vec::<f32>::try_from(tensor.to_kind(Kind::Float).reshape([-1]))?;
                    Ok::<_, TrainError>(export.tensor(name, &values)?)
                });
                if let Err(error) = written {
                    writing = Some(Err(error));
                }
            }
        }
        let written = writing.map_or(Ok(()), |export| Ok(export?.finish()?));
        let failures = self.sum(&[f64::from(u8::from(written.is_err()))])?[0];
        match written {
            Ok(()) if failures > 0.0 => Err(TrainError::Start(format!(
                "{} was not written, rank 0 says why",
                target.display()
            ))),
            written => written,
        }
    }

    fn begin(&self, target: &Path, model_dir: &Path, options: &Options) -> Result<Export, TrainError> {
        let export = match (options.form, &self.config.lora) {
            (Form::Model, _) => {
                let units = units(&self.config);
                Export::model(target, model_dir, &units, options.precision, options.file_bytes)
            }
            (Form::Adapter, Some(lora)) => {
                let base = model_dir.display().to_string();
                Export::adapter(target, &self.config, lora, &base, options.precision)
            }
            (Form::Adapter, None) => Err(ModelError::Unsupported {
                path: target.display().to_string(),
                field: "form",
                found: "adapter".to_owned(),
                wanted: "this model has none; export it as a model",
            }),
        };
        Ok(export?)
    }
}
