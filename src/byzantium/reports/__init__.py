"""What people look at: tables, figures, a page, Markdown, a demonstration."""
