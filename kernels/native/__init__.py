"""Operations in C for CPUs, where torch has none that is as fast."""
