"""Google's Gemini API (https://ai.google.dev/api/generate-content), which Vertex AI speaks as well."""
