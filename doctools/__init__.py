"""The documentation's tools: pages made from the code's own vocabulary, and the code blocks of all pages as tests."""
