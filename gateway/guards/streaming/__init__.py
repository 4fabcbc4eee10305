"""What watches streams: answers judged on their way, held, let go or cut."""
