"""What every folder may know: ids, events, models, problem codes and the error tree. Data only, no verdicts."""
