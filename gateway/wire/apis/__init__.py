"""APIs that do not chat: their requests are read as far as policies need it, their answers are passed on."""
