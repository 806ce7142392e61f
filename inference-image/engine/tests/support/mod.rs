//! A tiny random model, an engine in front of it, and a client. Used by the agent's tests as well.

#![allow(dead_code, clippy::unwrap_used, reason = "the agent's tests use a part of it")]

use grpo_engine::{Options, serve};
use grpo_engine_protocol::{CompletionRequest, CompletionResponse, EngineState, ErrorBody};
use reqwest::Client;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use std::path::Path;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const VOCABULARY: usize = 96;
pub const CONTEXT: usize = 512;

/// Writes config.json and model.safetensors of a random two-layer model, which depends on the seed.
pub fn write_model(dir: &Path, seed: u64) {
    std::fs::create_dir_all(dir).unwrap();
    let (hidden, intermediate, layers, heads, kv_heads, head_dim) = (32, 48, 2, 4, 2, 16);
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_act": "silu", "attention_bias": false,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": CONTEXT, "tie_word_embeddings": true,
        "eos_token_id": 2, "torch_dtype": "float32",
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        let shapes = [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![heads * head_dim, hidden]),
            ("self_attn.k_proj", vec![kv_heads * head_dim, hidden]),
            ("self_attn.v_proj", vec![kv_heads * head_dim, hidden]),
            ("self_attn.o_proj", vec![hidden, heads * head_dim]),
            ("self_attn.q_norm", vec![head_dim]),
            ("self_attn.k_norm", vec![head_dim]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![intermediate, hidden]),
            ("mlp.up_proj", vec![intermediate, hidden]),
            ("mlp.down_proj", vec![hidden, intermediate]),
        ];
        tensors.extend(shapes.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    let mut random = Random(seed);
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape)| {
            let (middle, spread) = if name.contains("norm") { (1.0, 0.1) } else { (0.0, 0.35) };
            let values = (0..shape.iter().product()).map(|_| middle + spread * (2.0 * random.unit() - 1.0) as f32);
            (name, shape, values.flat_map(f32::to_le_bytes).collect())
        })
        .collect();
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}

/// SplitMix64: enough for test data.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn prompt(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| 3 + self.below(VOCABULARY as u64 - 3) as u32).collect()
    }
}

/// An engine on its own port; it ends when this is dropped.
pub struct Running {
    pub url: String,
    pub client: Client,
    pub stop: oneshot::Sender<()>,
    pub ended: JoinHandle<()>,
}

pub fn options(model_dir: &Path) -> Options {
    Options {
        model_dir: model_dir.to_owned(),
        model_name: "policy".to_owned(),
        max_rows: 16,
        max_context: None,
        max_waiting: 256,
        threads: 1,
        prefix_cache_bytes: 16 << 20,
        kv_bytes: None,
    }
}

pub async fn start(options: Options) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_on(listener, options)
}

pub fn start_on(listener: TcpListener, options: Options) -> Running {
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        serve(listener, options, stopped).await.unwrap();
    });
    Running {
        url,
        client: Client::new(),
        stop,
        ended,
    }
}

impl Running {
    /// Ends the engine as its container would.
    pub async fn kill(self) {
        drop(self.stop);
        self.ended.await.unwrap();
    }

    pub async fn complete(&self, request: &CompletionRequest) -> Result<CompletionResponse, ErrorBody> {
        self.complete_from(request, None).await
    }

    pub async fn complete_from(
        &self,
        request: &CompletionRequest,
        weights: Option<&str>,
    ) -> Result<CompletionResponse, ErrorBody> {
        let mut call = self.client.post(format!("{}/v1/completions", self.url)).json(request);
        if let Some(weights) = weights {
            call = call.header(grpo_engine_protocol::WEIGHTS_HEADER, weights);
        }
        let answer = call.send().await.unwrap();
        match answer.status().is_success() {
            true => Ok(answer.json().await.unwrap()),
            false => {
                let status = answer.status().as_u16();
                let error: ErrorBody = answer.json().await.unwrap();
                assert_eq!(error.status(), status);
                Err(error)
            }
        }
    }

    pub async fn state(&self) -> EngineState {
        self.client
            .get(format!("{}/admin/state", self.url))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }
}

/// The same engine with other sizes.
pub fn with(options: Options, max_rows: usize, threads: usize, prefix_cache_bytes: usize) -> Options {
    Options {
        max_rows,
        threads,
        prefix_cache_bytes,
        ..options
    }
}
