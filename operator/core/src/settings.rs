//! The operator's settings that affect the objects it creates.

use clap::Args;
use jiff::SignedDuration;

/// Images and other settings of the processes the operator starts.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Image of the rollout driver.
    #[arg(long, env = "GRPO_DRIVER_IMAGE", default_value = "grpo.dev/driver:dev")]
    pub driver_image: String,
    /// Image of the trainer on CPUs.
    #[arg(long, env = "GRPO_TRAINER_IMAGE", default_value = "grpo.dev/trainer:dev")]
    pub trainer_image: String,
    /// Image of the trainer where `trainer.gpusPerNode` is above 0.
    #[arg(long, env = "GRPO_TRAINER_CUDA_IMAGE", default_value = "grpo.dev/trainer-cuda:dev")]
    pub trainer_cuda_image: String,
    /// Image of the embedded engine.
    #[arg(long, env = "GRPO_ENGINE_IMAGE", default_value = "grpo.dev/engine:dev")]
    pub engine_image: String,
    /// Where vLLM's image is pulled from when a pool names none; the tag is `v` and the pool's version.
    #[arg(long, env = "GRPO_VLLM_REPOSITORY", default_value = "docker.io/vllm/vllm-openai")]
    pub vllm_repository: String,
    /// Where SGLang's image is pulled from when a pool names none; the tag is `v` and the pool's version.
    #[arg(long, env = "GRPO_SGLANG_REPOSITORY", default_value = "docker.io/lmsysorg/sglang")]
    pub sglang_repository: String,
    /// Image of the engine agent.
    #[arg(long, env = "GRPO_AGENT_IMAGE", default_value = "grpo.dev/engine-agent:dev")]
    pub agent_image: String,
    /// Image of the sandbox gateway.
    #[arg(long, env = "GRPO_GATEWAY_IMAGE", default_value = "grpo.dev/gateway:dev")]
    pub gateway_image: String,
    /// Image of sandboxd, mounted into every sandbox.
    #[arg(long, env = "GRPO_SANDBOXD_IMAGE", default_value = "grpo.dev/sandboxd:dev")]
    pub sandboxd_image: String,
    /// URL of the Hugging Face Hub, or of a mirror, that runs download from. Default: the public hub.
    #[arg(long, env = "GRPO_HUB_ENDPOINT")]
    pub hub_endpoint: Option<String>,
    /// When images are pulled, ours and those that runs name.
    #[arg(long, env = "GRPO_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    pub image_pull_policy: String,
    /// Name of a Secret with which images are pulled, in each namespace of runs and pools. May be given several times.
    #[arg(long = "pull-secret", env = "GRPO_PULL_SECRETS", value_delimiter = ',')]
    pub pull_secrets: Vec<String>,
    /// Name no user and no groups in pods: the cluster assigns them, as OpenShift does. Default: 65532 in each pod.
    #[arg(long, env = "GRPO_CLUSTER_ASSIGNS_IDS")]
    pub cluster_assigns_ids: bool,
    /// Admit runs and pools with fields that driver, trainer and gateway of this version do not execute: for images of
    /// another version. Default: they are refused.
    #[arg(long, env = "GRPO_ADMIT_UNSUPPORTED")]
    pub admit_unsupported: bool,
    /// Seconds that new nodes are waited for. Above 0: nodes are added for pods that have none, so a run that fits on
    /// no present nodes is let go too, when no other run fits. 0: nodes are what they are. At most half an hour: a rank
    /// waits longer than that for the others.
    #[arg(long, env = "GRPO_NODE_SCALE_UP_SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1800))]
    pub node_scale_up_seconds: u32,
    /// The operator's own service account, `namespace/name`, which engine agents let ask for their status.
    #[arg(long, env = "GRPO_OPERATOR_ACCOUNT")]
    pub account: Option<String>,
    /// RUST_LOG of the processes the operator starts.
    #[arg(long, env = "GRPO_PROCESS_LOG", default_value = "info")]
    pub process_log: String,
}

impl Settings {
    /// How long to wait for new nodes, if the cluster adds nodes.
    pub fn scale_up(&self) -> Option<SignedDuration> {
        (self.node_scale_up_seconds > 0).then(|| SignedDuration::from_secs(self.node_scale_up_seconds.into()))
    }

    /// The defaults and the environment's values, for a preview of the operator's objects.
    pub fn defaults() -> Result<Self, clap::Error> {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            settings: Settings,
        }
        Ok(<Flags as clap::Parser>::try_parse_from(["grpo-operator"])?.settings)
    }
}

#[cfg(test)]
impl Settings {
    /// The defaults, for tests.
    pub fn for_tests() -> Self {
        Self::defaults().unwrap()
    }

    /// Settings for tests of an operator that admits fields which this version does not execute.
    pub fn admitting_unsupported() -> Self {
        Self {
            admit_unsupported: true,
            ..Self::for_tests()
        }
    }
}
