use super::*;

#[test]
fn ranks_are_rounded_up_to_those_that_vllm_knows() {
    for (asked, given) in [(1, 1), (2, 8), (16, 16), (33, 64), (300, 320), (512, 512)] {
        assert_eq!(lora_rank(asked), given);
    }
}
