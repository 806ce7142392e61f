//! Why a model cannot be read, written or computed.

/// Why a model directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("reading {path}: {source}; is the model mounted there?")]
    Read { path: String, source: std::io::Error },
    #[error("{path} is not what it should be: {message}")]
    Malformed { path: String, message: String },
    #[error("{path}: model_type {found:?} is not known here; known: qwen2, qwen3, qwen3_moe")]
    UnknownType { path: String, found: String },
    #[error("{path}: {field} is {found}, which this model code does not compute; {wanted}")]
    Unsupported {
        path: String,
        field: &'static str,
        found: String,
        wanted: &'static str,
    },
    #[error("{path}: tensor {name} is missing")]
    MissingTensor { path: String, name: String },
    #[error("{path}: tensor {name} is not of this model; the config asks for no such tensor")]
    UnexpectedTensor { path: String, name: String },
    #[error("{path}: tensor {name} is there already, in {other}; one of the two must go")]
    DuplicateTensor { path: String, name: String, other: String },
    #[error("{path}: tensor {name} is damaged ({message}); copy the file again")]
    DamagedTensor {
        path: String,
        name: String,
        message: String,
    },
    #[error("{path}: tensor {name} has shape {found:?}, the config asks for {wanted:?}")]
    Shape {
        path: String,
        name: String,
        found: Vec<usize>,
        wanted: Vec<usize>,
    },
    #[error("{path}: tensor {name} holds {found}; F32, F16 and BF16 can be read")]
    Kind { path: String, name: String, found: String },
    #[error("writing {path}: {source}; is the disk full?")]
    Write { path: String, source: std::io::Error },
}
