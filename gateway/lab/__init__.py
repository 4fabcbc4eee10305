"""What a policy would do, would have done, and was elsewhere: tools for operators, which serving never imports."""
