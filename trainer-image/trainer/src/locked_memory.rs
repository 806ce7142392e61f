//! The limit on locked memory, which RDMA needs: the network card reads and writes pages that must not move.
//!
//! A process that is not root cannot raise its hard limit, and a capability would not help it: Kubernetes gives
//! capabilities to root only. So the container runtime must set the limit. NCCL finds a low one in its first
//! collective, minutes after the start and with a message about `ibv_reg_mr`; here it is found at once.

use grpo_contracts::names::RDMA_VARIABLE;

use crate::error::TrainError;

const LIMITS: &str = "/proc/self/limits";
const NAME: &str = "Max locked memory";
/// NCCL's own buffers of one rank; less cannot work.
const LEAST: u64 = 1 << 30;

/// Refuses to start when the operator asked for RDMA and the limit is too low.
pub fn check() -> Result<(), TrainError> {
    if std::env::var_os(RDMA_VARIABLE).is_none() {
        return Ok(());
    }
    let text = std::fs::read_to_string(LIMITS)
        .map_err(|error| TrainError::Start(format!("reading the limit on locked memory in {LIMITS}: {error}")))?;
    enough(&text)
}

fn enough(limits: &str) -> Result<(), TrainError> {
    let line = limits.lines().find_map(|line| line.strip_prefix(NAME));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    match soft.parse::<u64>() {
        Ok(bytes) if bytes < LEAST => Err(TrainError::Start(format!(
            "trainer.network.rdma needs memory that can be locked, and the container runtime of this node limits it to \
             {bytes} bytes: set LimitMEMLOCK=infinity for the runtime's service (containerd.service) and restart it, or \
             leave out trainer.network.rdma for TCP"
        ))),
        Ok(bytes) => {
            tracing::warn!(
                bytes,
                "the limit on locked memory is not `unlimited`: NCCL may need more for RDMA"
            );
            Ok(())
        }
        // `unlimited`.
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(soft: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max cpu time              unlimited            unlimited            seconds   \n\
             Max locked memory         {soft}                unlimited            bytes     \n\
             Max open files            1024                 1048576              files     \n"
        )
    }

    #[test]
    fn a_low_limit_is_refused_with_the_remedy_and_others_are_not() {
        let refused = enough(&limits("65536")).unwrap_err().to_string();
        assert!(
            refused.contains("65536 bytes") && refused.contains("LimitMEMLOCK=infinity"),
            "{refused}"
        );
        for soft in ["unlimited", "1073741824"] {
            assert!(enough(&limits(soft)).is_ok(), "{soft}");
        }
    }
}
