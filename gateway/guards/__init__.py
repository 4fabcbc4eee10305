"""What is looked for in requests and answers: scanners, masks, and the windows that streams are scanned through."""
